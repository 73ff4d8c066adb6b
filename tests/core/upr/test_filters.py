"""Filters and projections of streams (rule U63)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.upr.filters import ALL, KEY_BYTES_MAX, RANGES_MAX, Filter, KeyRange, prefix, wrong_filter
from tidemark_core.upr.messages import Op, Row
from tidemark_core.upr.positions import NO_FILTER

KEYS = st.one_of(st.binary(max_size=4), st.lists(st.sampled_from([b"\xff", b"a", b"b"]), max_size=4).map(b"".join))
RANGES = st.builds(KeyRange, KEYS, st.one_of(st.none(), KEYS))


@given(KEYS, KEYS)
def test_u63_a_prefix_is_a_range(start: bytes, key: bytes) -> None:
    assert prefix(start).holds(key) == key.startswith(start)
    assert prefix(start).holds(start + key)


@given(st.lists(RANGES, max_size=4), st.booleans(), st.booleans(), st.randoms())
def test_u63_equal_filters_have_equal_digests(
    ranges: list[KeyRange], values: bool, headers: bool, dice: object
) -> None:
    shuffled = list(ranges)
    dice.shuffle(shuffled)   # type: ignore[attr-defined]
    made = Filter(tuple(ranges), values, headers)

    assert made.digest == Filter(tuple(shuffled), values, headers).digest
    assert (made.digest == NO_FILTER) == made.whole
    assert made.digest != Filter((*ranges, KeyRange(b"one more", None)), values, headers).digest
    assert made.digest != Filter(tuple(ranges), not values, headers).digest


@given(st.lists(RANGES, max_size=4), st.lists(KEYS, max_size=8))
def test_u63_a_key_passes_when_a_range_holds_it(ranges: list[KeyRange], keys: list[bytes]) -> None:
    rows = [Row(at, key) for at, key in enumerate(keys)]
    passed = [
        row for row in rows
        if not ranges or any(first <= row.key and (end is None or row.key < end) for first, end in ranges)
    ]

    assert Filter(tuple(ranges)).passed(rows) == passed


def test_u63_a_projection_leaves_values_and_headers_out() -> None:
    row = Row(5, b"k", Op.PUT, b"value", 7, b"headers", 8, before=b"old")

    assert ALL.passed([row]) == [row]
    assert Filter(values=False).passed([row]) == [row._replace(value=b"", before=None)]
    assert Filter(headers=False).passed([row]) == [row._replace(headers=b"")]


@pytest.mark.parametrize(("word", "wanted"), [
    ("65 ranges", Filter((KeyRange(b"a", None),) * (RANGES_MAX + 1))),
    ("more than 4096 bytes", Filter((KeyRange(b"a" * (KEY_BYTES_MAX + 1), None),))),
    ("more than 4096 bytes", Filter((KeyRange(b"a", b"b" * (KEY_BYTES_MAX + 1)),))),
    ("empty range", Filter((KeyRange(b"b", b"b"),))),
])
def test_u63_a_filter_that_cannot_be_is_refused_by_its_field(word: str, wanted: Filter) -> None:
    found = wrong_filter(wanted)

    assert found is not None and found.startswith("filter") and word in found
    assert wrong_filter(Filter((prefix(b"a"), KeyRange(b"", None)))) is None
