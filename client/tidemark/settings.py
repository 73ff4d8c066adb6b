"""How an appender behaves: its options, checked once, each refusal naming the option.

Stays out: limits that the log group sets (checks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from tidemark_core.base.entry import Durability

from .errors import InvalidArgument
from .payload import COMPRESSIONS
from .producer import ProducerId, checked_producer

ON_QUORUM_TIMEOUT = ("wait", "raise")
ON_ROLLBACK = ("retry", "raise")

NUMBER_MAX = 1e15
"""Of seconds and bytes alike: clocks, gRPC and the wire take it, and infinity is above it."""

N = TypeVar("N", bound=float)


@dataclass(frozen=True, slots=True)
class AppendSettings:
    """Options of `Client.appender`.  `durability` None takes the group's default."""

    durability: Durability | None
    batch_records: int
    batch_bytes: int
    linger_s: float
    timeout_s: float
    max_buffered_bytes: int
    compression: str | None
    on_quorum_timeout: str = "wait"
    on_rollback: str = "retry"
    producer: ProducerId | None = None
    fence: int | None = None   # None: the next one

    @classmethod
    def checked(
        cls,
        *,
        durability: Durability | str | None,
        batch_records: int,
        batch_bytes: int,
        linger_ms: float,
        timeout_s: float,
        max_buffered_bytes: int,
        compression: str | None,
        on_quorum_timeout: str,
        on_rollback: str,
        producer: ProducerId | None = None,
        fence: int | None = None,
    ) -> AppendSettings:
        """Return settings; raises InvalidArgument."""
        one_of("compression", compression, COMPRESSIONS)
        one_of("on_quorum_timeout", on_quorum_timeout, ON_QUORUM_TIMEOUT)
        one_of("on_rollback", on_rollback, ON_ROLLBACK)
        checked_producer(producer, fence)
        return cls(
            None if durability is None else durability_of(durability),
            at_least("batch_records", batch_records, 1),
            at_least("batch_bytes", batch_bytes, 1),
            at_least("linger_ms", linger_ms, 0) / 1000,
            at_least("timeout_s", timeout_s, 0.001),
            at_least("max_buffered_bytes", max_buffered_bytes, 1),
            compression,
            on_quorum_timeout,
            on_rollback,
            producer,
            fence,
        )


def durability_of(durability: Durability | str) -> Durability:
    """Return a durability given as itself or by name."""
    if type(durability) is Durability:
        return durability
    try:
        return Durability[durability.upper()]  # type: ignore[union-attr]
    except (KeyError, AttributeError):
        raise InvalidArgument("durability", f"{durability!r} is not one of QUORUM, COMMIT, LOCAL") from None


def one_of(field: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise InvalidArgument naming the field when `value` is none of the choices."""
    if value not in choices:
        raise InvalidArgument(field, f"{value!r} is not one of {', '.join(map(repr, choices))}")


def at_least(field: str, value: N, minimum: float) -> N:
    """Return a number from `minimum` to NUMBER_MAX; raises InvalidArgument naming the field."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= minimum:
        raise InvalidArgument(field, f"is {value!r}, must be a number of at least {minimum}")
    if value > NUMBER_MAX:
        raise InvalidArgument(field, f"must be at most {NUMBER_MAX:g}; a wait without an end hides what is wrong")
    return value
