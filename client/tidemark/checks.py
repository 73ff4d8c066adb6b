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

    __slots__ = ("_batch_limit", "_group_name", "_limit", "keys_required", "payload_bytes_max", "record_bytes_max")

    def __init__(self, group: Group, max_buffered_bytes: int) -> None:
        self._group_name = group.name
        self.keys_required = group.keys_required
        self.payload_bytes_max, self._batch_limit = min(
            (max(1, group.batch_bytes_max - BATCH_OVERHEAD_BYTES), f"the room of a batch of group {group.name!r}"),
            (max_buffered_bytes, "the room of the buffer (max_buffered_bytes)"),
        )
        self.record_bytes_max, self._limit = min(
            (group.record_bytes_max, f"the limit of group {group.name!r}"),
            (self.payload_bytes_max - RECORD_OVERHEAD_BYTES, self._batch_limit),
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
        if not key and self.keys_required:
            raise self.no_key("key", key)
        if headers is not None:
            size += sum(len(name) + len(content) + HEADER_OVERHEAD_BYTES for name, content in headers)
        if size > self.record_bytes_max:
            raise self.too_large("value", size)
        return size + RECORD_OVERHEAD_BYTES

    def no_key(self, field: str, key: bytes | None) -> KeyRequired:
        """Return the refusal of a key that is missing or empty."""
        what = "is missing" if key is None else "is empty"
        return KeyRequired(field, f"{what}; group {self._group_name!r} requires a key in every record")

    def too_large(self, field: str, size: int) -> RecordTooLarge:
        """Return the refusal of a record with so many bytes of key, value and headers."""
        return RecordTooLarge(
            field,
            f"the record has {size} bytes, {self._limit} is {self.record_bytes_max}",
            advice="Split the record, store it elsewhere and append a reference, or raise the limit.",
        )

    def batch(self, size: int) -> None:
        """Judge the bytes of columns that go into one batch; raises InvalidArgument."""
        if size > self.payload_bytes_max:
            raise InvalidArgument(
                "columns", f"take {size} bytes with their note, {self._batch_limit} is {self.payload_bytes_max}",
                advice="Append fewer records at once.")

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
            not self.keys_required
            and set(map(type, items)) == {bytes}
            and max(map(len, items)) <= self.record_bytes_max
        )
