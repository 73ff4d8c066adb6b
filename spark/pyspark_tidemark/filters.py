"""Filters that Spark pushes down: which part of a query each mode leaves out, and which filters Spark applies itself.

Spark calls `pushFilters` only where `spark.sql.python.filterPushdown.enabled` is on, and refuses readers that have the
method where it is off.  A process of its own does the former, so only there a reader has the method (P3).
Stays out: what a reader does with the intervals (the readers).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pyspark.sql import datasource

PUSHES = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module of Spark's process that pushes filters down."""

KEY_BYTES_MAX = 1000
"""Longer keys in filters are left to Spark: what follows them may be longer than a key can be."""


class Column(NamedTuple):
    """A column that is never null, by whose values a mode leaves rows out."""

    kind: type
    successor: Callable[[Any], Any]     # the least value above one
    whole: bool                         # whether a mode leaves out each row that a list of values does not name


def _next_number(number: int) -> int:
    return number + 1


def _next_key(key: bytes) -> bytes:
    return key + b"\0"


SHARD = Column(int, _next_number, True)
OFFSET = Column(int, _next_number, False)
KEY = Column(bytes, _next_key, False)


@dataclass(frozen=True, slots=True)
class Interval:
    """Values from `first` on and below `until`; None bounds nothing.  `among` are those of a list, None without one."""

    first: Any = None
    until: Any = None
    among: frozenset[Any] | None = None

    @property
    def empty(self) -> bool:
        """Say whether no value is in it."""
        return self.among == frozenset() or self.until == b"" or (   # no key is below the empty one
            self.first is not None and self.until is not None and not self.first < self.until)

    def __contains__(self, value: Any) -> bool:
        return (
            (self.first is None or self.first <= value) and (self.until is None or value < self.until)
            and (self.among is None or value in self.among))

    def above(self, first: Any) -> Interval:
        """Return the part from `first` on."""
        return replace(self, first=first if self.first is None else max(self.first, first))

    def below(self, until: Any) -> Interval:
        """Return the part below `until`."""
        return replace(self, until=until if self.until is None else min(self.until, until))

    def of(self, values: Iterable[Any]) -> Interval:
        """Return the part that a list names."""
        named = frozenset(values)
        return replace(self, among=named if self.among is None else self.among & named)


EVERYTHING = Interval()


@dataclass(slots=True)
class Wanted:
    """Intervals of columns that a query asks for."""

    columns: Mapping[str, Column]
    intervals: dict[str, Interval] = field(default_factory=dict)

    def __getitem__(self, column: str) -> Interval:
        return self.intervals.get(column, EVERYTHING)

    def push(self, filters: Sequence[datasource.Filter]) -> list[datasource.Filter]:
        """Narrow the intervals by filters, all of which hold; return those that Spark still has to apply."""
        return [each for each in filters if not self._push(each)]

    def _push(self, given: datasource.Filter) -> bool:
        """Narrow an interval by one filter; say whether no row is left that it would take away."""
        attribute: tuple[str, ...] = getattr(given, "attribute", ())
        column = self.columns.get(attribute[0]) if len(attribute) == 1 else None
        if column is None:
            return False
        if isinstance(given, datasource.IsNotNull):
            return True
        values = given.value if isinstance(given, datasource.In) else (getattr(given, "value", None),)
        if not all(type(value) is column.kind and not _is_long(value) for value in values):
            return False
        name, found = attribute[0], self[attribute[0]]
        match given:
            case datasource.EqualTo():
                found = found.above(given.value).below(column.successor(given.value)).of((given.value,))
            case datasource.GreaterThanOrEqual():
                found = found.above(given.value)
            case datasource.GreaterThan():
                found = found.above(column.successor(given.value))
            case datasource.LessThan():
                found = found.below(given.value)
            case datasource.LessThanOrEqual():
                found = found.below(column.successor(given.value))
            case datasource.In() if values:
                found = found.above(min(values)).below(column.successor(max(values))).of(values)
            case _:
                return False
        self.intervals[name] = found
        return column.whole or not isinstance(given, datasource.In)


def _is_long(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) > KEY_BYTES_MAX


class WithFilters:
    """Mix-in of a reader that has `wanted`, for the process that pushes filters down."""

    wanted: Wanted

    def pushFilters(self, filters: Sequence[datasource.Filter]) -> Iterable[datasource.Filter]:
        """Take filters in; return those that Spark applies itself."""
        return self.wanted.push(filters)


def pushed_down() -> bool:
    """Say whether this process pushes filters down."""
    return PUSHES in sys.modules
