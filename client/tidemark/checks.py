"""Checks of records before anything is sent: types, keys, sizes; each refusal names the field.

Stays out: options of the appender (settings), and everything the cluster judges.
"""

from __future__ import annotations

from collections.abc import Sequence

from .batch import (
    BATCH_OVERHEAD_BYTES,
    HEADER_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Record,
    RecordHeaders,
    headers_of,
    timestamp_us_of,
)
from .errors import InvalidArgument, KeyRequired, RecordTooLarge
from .routing import Group


class Checks:
    """What a group accepts.  Made anew when the group changes."""

    __slots__ = ("_group_name", "_keys_required", "_limit", "payload_bytes_max", "record_bytes_max")

    def __init__(self, group: Group, max_buffered_bytes: int) -> None:
        self._group_name = group.name
        self._keys_required = group.keys_required
        self.payload_bytes_max = max(1, group.batch_bytes_max - BATCH_OVERHEAD_BYTES)
        self.record_bytes_max, self._limit = min(
            (group.record_bytes_max, f"the limit of group {group.name!r}"),
            (self.payload_bytes_max - RECORD_OVERHEAD_BYTES, f"the room of a batch of group {group.name!r}"),
            (max_buffered_bytes - RECORD_OVERHEAD_BYTES, "the room of the buffer (max_buffered_bytes)"),
        )

    def record(self, value: bytes, key: bytes | None, headers: RecordHeaders) -> int:
        """Return the bytes a record takes in the buffer; raises InvalidArgument."""
        if type(value) is not bytes:
            raise InvalidArgument("value", f"must be bytes, not {type(value).__name__}")
        size = len(value)
        if key is not None:
            if type(key) is not bytes:
                raise InvalidArgument("key", f"must be bytes or None, not {type(key).__name__}")
            size += len(key)
        if not key and self._keys_required:
            what = "is missing" if key is None else "is empty"
            raise KeyRequired("key", f"{what}; group {self._group_name!r} requires a key in every record")
        if headers is not None:
            size += sum(len(name) + len(content) + HEADER_OVERHEAD_BYTES for name, content in headers)
        self._check_size(size)
        return size + RECORD_OVERHEAD_BYTES

    def sizes(self, largest: int, shortest_key: int) -> None:
        """Judge records by the bytes of the largest one and of the shortest key; raises InvalidArgument."""
        if not shortest_key and self._keys_required:
            text = f"is missing or empty in a record; group {self._group_name!r} requires a key in every record"
            raise KeyRequired("key", text)
        self._check_size(largest)

    def _check_size(self, size: int) -> None:
        if size > self.record_bytes_max:
            raise RecordTooLarge(
                "value",
                f"the record has {size} bytes, {self._limit} is {self.record_bytes_max}",
                advice="Split the record, store it elsewhere and append a reference, or raise the limit.",
            )

    def many(self, records: list[Record]) -> list[tuple[int, RecordHeaders, int | None]]:
        """Return size, headers and timestamp of each record; raises InvalidArgument naming record and field."""
        checked = []
        for position, record in enumerate(records):
            try:
                pairs = headers_of(record.headers) if record.headers else None
                timestamp_us = timestamp_us_of(record.timestamp_us)
                checked.append((self.record(record.value, record.key, pairs), pairs, timestamp_us))
            except InvalidArgument as error:
                raise type(error)(
                    f"records[{position}].{error.field}", error.message.partition(": ")[2], advice=error.advice
                ) from None
        return checked

    def are_plain(self, items: Sequence[bytes | Record]) -> bool:
        """Say whether all are values without a key, and none is wrong: the short way for large calls."""
        return (
            not self._keys_required
            and set(map(type, items)) == {bytes}
            and max(map(len, items)) <= self.record_bytes_max
        )
