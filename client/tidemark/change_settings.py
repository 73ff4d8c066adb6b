"""Options of a change stream, checked: where it starts, its filter, its consumer.

Stays out: acting on them.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemark_core.upr.consuming import OnLost
from tidemark_core.upr.credit import WINDOW_BYTES_MAX, WINDOW_BYTES_MIN
from tidemark_core.upr.filters import Filter, KeyRange, prefix, wrong_filter
from tidemark_core.upr.positions import History, PositionRefused, Token, decode

from .batch import timestamp_us_of
from .errors import InvalidArgument
from .settings import at_least
from .subscription import checked_lease_ms, checked_name

BEGINNING, NOW = "beginning", "now"
BUFFER_BYTES = 64 << 20
COMMIT_S = 5.0
BARRIER_S = 10.0

From: TypeAlias = str | datetime.datetime
Key: TypeAlias = bytes | str


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """The options of `Client.changes`.  `start` is a token, "beginning", "now", or milliseconds since 1970."""

    start: Token | str | int
    shards: tuple[int, ...] | None
    wanted: Filter
    history: History
    on_lost: OnLost
    consumer: str | None
    lease_ms: int
    commit_s: float | None
    skip_deletes: bool
    buffer_bytes: int
    timeout_s: float

    @classmethod
    def checked(
        cls, *, from_: Any, level: Any, prefix: Any, key_range: Any, values: Any, history: Any, on_lost: Any,
        consumer: Any, lease_s: Any, commit_s: Any, skip_deletes: Any, buffer_bytes: Any, timeout_s: Any, shards: Any,
    ) -> ChangeSettings:
        """Return settings; raises InvalidArgument."""
        if level != "committed":
            raise InvalidArgument("level", f"is {level!r}, must be 'committed'")
        if history != "latest":
            raise InvalidArgument("history", f"is {history!r}, must be 'latest'")
        cls.check_on_lost(on_lost)
        wanted = _filter(prefix, key_range, bool(values))
        if consumer is not None:
            consumer = checked_name(consumer)
            if not wanted.whole:   # another filter is another consumer: its positions are worth nothing to this one
                consumer = checked_name(f"{consumer}.{wanted.digest[:4].hex()}")
        if shards is not None and consumer is not None:
            raise InvalidArgument("shards", "goes without consumer: a consumer follows all shards")
        return cls(
            _start(from_), None if shards is None else tuple(dict.fromkeys(shards)), wanted, History.LATEST,
            OnLost(on_lost), consumer, checked_lease_ms(lease_s),
            None if commit_s is None else at_least("commit_s", commit_s, 0.01), bool(skip_deletes),
            int(at_least("buffer_bytes", buffer_bytes, WINDOW_BYTES_MIN)), at_least("timeout_s", timeout_s, 0.001),
        )

    @staticmethod
    def check_on_lost(on_lost: Any) -> None:
        """Raise InvalidArgument unless `on_lost` is one of its two values."""
        if on_lost not in ("fail", "rebuild"):
            raise InvalidArgument("on_lost", f"is {on_lost!r}, must be 'fail' or 'rebuild'")

    def window(self, shards: int) -> int:
        """Return how many bytes each of so many shards may send ahead of the application."""
        return min(max(self.buffer_bytes // max(shards, 1), WINDOW_BYTES_MIN), WINDOW_BYTES_MAX, 4 << 20)


def _start(from_: Any) -> Token | str | int:
    if isinstance(from_, datetime.datetime):
        logged_us = timestamp_us_of(from_)
        assert logged_us is not None
        return -(-logged_us // 1000)
    if from_ in (BEGINNING, NOW):
        return str(from_)
    if not isinstance(from_, str):
        raise InvalidArgument("from_", f"is {from_!r}, must be 'beginning', 'now', a position or a datetime")
    token = decode(from_)
    if isinstance(token, PositionRefused):
        raise InvalidArgument("from_", token.message, reason="POSITION_REFUSED")
    return token


def _bytes(field: str, key: Any) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if not isinstance(key, bytes):
        raise InvalidArgument(field, f"is {key!r}, must be bytes or a text")
    return key


def _filter(prefixes: Any, key_range: Any, values: bool) -> Filter:
    ranges: list[KeyRange] = []
    if prefixes is not None:
        each = [prefixes] if isinstance(prefixes, bytes | str) else prefixes
        if not isinstance(each, Sequence) or not each:
            raise InvalidArgument("prefix", f"is {prefixes!r}, must be a prefix or several")
        ranges += (prefix(_bytes("prefix", one)) for one in each)
    if key_range is not None:
        if not isinstance(key_range, tuple) or len(key_range) != 2:
            raise InvalidArgument("key_range", f"is {key_range!r}, must be (first, end)")
        first, end = key_range
        ranges.append(KeyRange(_bytes("key_range", first or b""), None if end is None else _bytes("key_range", end)))
    wanted = Filter(tuple(ranges), values)
    if (wrong := wrong_filter(wanted)) is not None:
        raise InvalidArgument("prefix" if prefixes is not None else "key_range", wrong)
    return wanted

