"""The buffer of a reader: whatever overlaps, each offset comes out once and every entry that came twice is counted."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.delivery.buffer import Buffer
from tidemark_core.delivery.messages import Item, entries_item


class Logged(NamedTuple):
    base: int
    last: int
    size: int


@st.composite
def logs(draw: st.DrawFn) -> list[Logged]:
    entries, base = [], 0
    for count in draw(st.lists(st.integers(1, 3), min_size=1, max_size=12)):
        entries.append(Logged(base, base + count - 1, 10 * count))
        base += count
    return entries


@st.composite
def runs(draw: st.DrawFn, entries: list[Logged]) -> list[Item]:
    """The whole log, cut somehow."""
    cuts = sorted(draw(st.sets(st.integers(1, len(entries) - 1)))) if len(entries) > 1 else []
    ends = [0, *cuts, len(entries)]
    return [entries_item(entries[begin:end]) for begin, end in pairwise(ends)]


@given(st.data())
def test_nodes_that_cut_one_log_differently_give_every_offset_once(data: st.DataObject):
    entries = data.draw(logs())
    sent = [(item, node) for node in "abc" for item in data.draw(runs(entries))]
    buffer, out, position = Buffer(), [], 0
    for item, node in data.draw(st.permutations(sent)):
        buffer.put(item, node)
        while data.draw(st.booleans()) and (found := buffer.take(position)) is not None:
            out += found[0].body
            position = found[0].last + 1
    while (found := buffer.take(position)) is not None:
        out += found[0].body
        position = found[0].last + 1
    assert entries == out
    assert buffer.take(position) is None
    assert (0, 0) == (buffer.bytes, sum(buffer.bytes_of.values()))
    assert 2 * len(entries) == buffer.duplicates, "two of three nodes sent what was here already"


def test_what_is_taken_from_the_middle_of_an_entry_holds_the_whole_entry():
    buffer = Buffer()
    buffer.put(entries_item((Logged(0, 1, 10), Logged(2, 5, 20), Logged(6, 6, 30))), "a")
    assert buffer.take(4) == (entries_item((Logged(2, 5, 20), Logged(6, 6, 30))), "a")
    assert 0 == buffer.bytes


def test_what_a_gap_passed_over_was_never_taken_and_counts_as_no_duplicate():
    buffer = Buffer()
    buffer.put(entries_item((Logged(0, 1, 10),)), "a")
    assert buffer.take(0) is not None
    buffer.put(entries_item((Logged(2, 5, 20), Logged(6, 6, 30))), "a")
    buffer.put(entries_item((Logged(7, 7, 20), Logged(8, 8, 30))), "b")
    assert buffer.take(8) == (entries_item((Logged(8, 8, 30),)), "b"), "retention has passed up to here"
    assert (0, 0) == (buffer.bytes, buffer.duplicates)
