"""Cells, rows and stamps for the tests of keyspaces: few of each kind, so that ties and repeats are common."""

from __future__ import annotations

from hypothesis import strategies as st
from tidemark_core.optimistic.cells import NEVER, Element, ElementCell, Meta, StringCell
from tidemark_core.optimistic.stamps import ZERO, Actor, Stamp

A, B, C = (Actor(node, node.encode() * 8) for node in "abc")
ACTORS = (A, B, C, Actor("a", b"restart!"))


def stamp(ms: int, actor: Actor = A, logical: int = 0) -> Stamp:
    return Stamp(ms, logical, *actor)


def live(n: int, at: Stamp, value: bytes = b"", expires_at_ms: int = NEVER) -> ElementCell:
    return ElementCell(n, False, at, expires_at_ms, value)


def dead(n: int, at: Stamp) -> ElementCell:
    return ElementCell(n, True, at, NEVER, b"")


times = st.integers(1, 6)
stamps = st.builds(stamp, times, st.sampled_from(ACTORS), st.integers(0, 1))
values = st.sampled_from([b"", b"x", b"y"])
expiries = st.sampled_from([NEVER, 2, 4])
strings = st.builds(StringCell, stamps, st.just(False), expiries, values) | st.builds(
    StringCell, stamps, st.just(True), st.just(NEVER), st.just(b""))
numbers = st.integers(1, 3)
element_cells = st.builds(live, numbers, stamps, values, expiries) | st.builds(dead, numbers, stamps)
elements: st.SearchStrategy[Element] = st.dictionaries(st.sampled_from(ACTORS), element_cells, max_size=4)
metas = st.builds(Meta, stamps | st.just(ZERO), stamps | st.just(ZERO))
