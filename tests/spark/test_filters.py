"""Filters that Spark pushes down: what a mode leaves out and what Spark applies are the filters together."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark_tidemark import DefaultSource, filters
from pyspark_tidemark.filters import KEY, OFFSET, SHARD, Interval, Wanted
from pyspark_tidemark.log.planning import Range, within

Row = dict[str, Any]
COMPARED: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq, GreaterThan: operator.gt, GreaterThanOrEqual: operator.ge, LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def holds(given: Any, row: Row) -> bool | None:
    """Evaluate a filter as SQL does: None is unknown, and a row stays for True alone."""
    if isinstance(given, Not):
        found = holds(given.child, row)
        return None if found is None else not found
    value = row[given.attribute[0]]
    if isinstance(given, IsNull | IsNotNull):
        return (value is None) is isinstance(given, IsNull)
    if isinstance(given, EqualNullSafe):
        return value == given.value
    if value is None:
        return None
    if isinstance(given, In):
        return value in given.value
    if isinstance(given, StringStartsWith):
        return value.startswith(given.value)
    return None if given.value is None else COMPARED[type(given)](value, given.value)


INTS = st.integers(-1, 6)
KEYS = st.binary(max_size=2).map(lambda key: key.translate(bytes([byte % 3 for byte in range(256)])))


def filters_of(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    name = (column,)
    plain = st.one_of(
        *(st.builds(kind, st.just(name), values) for kind in COMPARED),
        st.builds(In, st.just(name), st.lists(values, min_size=1, max_size=4).map(tuple)),
        st.builds(EqualNullSafe, st.just(name), values),
        st.sampled_from([IsNull(name), IsNotNull(name)]),
    )
    return plain | plain.map(Not)


ROWS = [
    {"shard": shard, "offset": offset, "key": None if offset == 3 else bytes([offset % 3]) * (offset % 4)}
    for shard in range(4) for offset in range(6)]
DOCUMENTS = [{"key": bytes(key), "value": None if len(key) == 1 else b"v"} for key in (
    (), *((a,) for a in range(3)), *((a, b) for a in range(3) for b in range(3)), (1, 1, 1), (2, 2, 0))]


@given(st.lists(filters_of("shard", INTS) | filters_of("offset", INTS) | filters_of("key", KEYS), max_size=5))
def test_p3_a_log_leaves_out_what_filters_take_away_and_nothing_else(given: list[Filter]) -> None:
    wanted = Wanted({"shard": SHARD, "offset": OFFSET})
    left = wanted.push(given)
    assert all(each in given for each in left)
    ranges = within([Range(shard, 0, 6) for shard in range(4)], wanted["shard"], wanted["offset"])
    read = [row for row in ROWS if any(
        each.shard == row["shard"] and each.first <= row["offset"] < each.until for each in ranges)]
    shown = [row for row in read if all(holds(each, row) for each in left)]
    assert shown == [row for row in ROWS if all(holds(each, row) for each in given)]


@given(st.lists(filters_of("key", KEYS) | filters_of("value", KEYS), max_size=5))
def test_p3_documents_leave_out_keys_that_filters_take_away_and_nothing_else(given: list[Filter]) -> None:
    wanted = Wanted({"key": KEY})
    left, keys = wanted.push(given), wanted["key"]
    read = [] if keys.empty else [row for row in DOCUMENTS if row["key"] in Interval(keys.first, keys.until)]
    shown = [row for row in read if all(holds(each, row) for each in left)]
    assert shown == [row for row in DOCUMENTS if all(holds(each, row) for each in given)]
    if keys.among is not None:
        assert {row["key"] for row in shown} <= keys.among, "so only their shards are read"


@pytest.mark.parametrize("given", [
    EqualTo(("shard",), None), EqualTo(("shard",), True), EqualTo(("shard",), 1.0), GreaterThan(("key",), b"x" * 1001),
    EqualTo(("value", "number"), 1), StringStartsWith(("key",), "a"), EqualTo(("value",), b"a"), IsNull(("key",)),
])
def test_p3_what_a_mode_cannot_judge_is_left_to_spark(given: Filter) -> None:
    wanted = Wanted({"shard": SHARD, "key": KEY})
    assert wanted.push([given]) == [given]
    assert wanted["shard"] == wanted["key"] == Interval()


def test_p3_no_key_is_below_the_empty_one() -> None:
    wanted = Wanted({"key": KEY})
    assert wanted.push([LessThan(("key",), b"")]) == [] and wanted["key"].empty


@pytest.mark.parametrize("mode", ["log", "documents", "changes", "keyspace"])
def test_p3_a_reader_takes_filters_only_where_spark_pushes_them(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def reader(**options: str) -> DataSourceReader:
        of = "keyspace" if mode == "keyspace" else "group"
        source = DefaultSource({of: "orders", "endpoints": "n:1", "mode": mode, **options})
        return source.reader(source.schema())

    base = reader(pushDown="true")
    assert type(base).pushFilters is DataSourceReader.pushFilters, "Spark refuses another one where the setting is off"
    monkeypatch.setitem(filters.sys.modules, filters.PUSHES, filters)
    pushing = reader(pushDown="true")
    assert isinstance(pushing, filters.WithFilters) and isinstance(pushing, type(base))
    assert type(reader()) is type(base), "the user asks for it"
