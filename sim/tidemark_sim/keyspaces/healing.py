"""The end of a run of the keyspace plane: faults stop, and everything must come to rest.

A move that is open ends, dead owners are replaced, one round of the floor goes through with all nodes, the owners are
equal then and hold no tombstone, and the last reads at every node show all that was acknowledged.
Stays out: laws about single answers (`judge`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark_core.optimistic.cells import Meta, Place, Row, Sort, decode_row
from tidemark_core.optimistic.floors import highest
from tidemark_core.optimistic.hinting.keeping import HINTS
from tidemark_core.optimistic.holding.layout import FAMILIES, place_of, span_of
from tidemark_core.optimistic.stamps import ZERO
from tidemark_core.optimistic.storing import kept

from ..trace import Violation
from .clients import MAPS, SETS
from .node import Node
from .operator import UNIT
from .world import BEGIN_MS, RangeWorld

LATEST_MS = 60_000
LOOK_MS = 50
LATE_MS = 6_000
"""The time after which no message is under way any more that was sent before."""


def finish(world: RangeWorld) -> None:
    """Heal the world, and judge it at rest."""
    world.faults.calm()
    options = world.options.operator
    options.lost = options.swap = options.resize = options.abort = options.floor = options.give_up = 0.0
    world.operator.give_up()
    world.options.clients.think_ms = LATEST_MS * 100
    if world.manual:
        world.manual = False
        world.operator.tick()
    wait(world, "no move is open, and no owner's disk is gone", lambda: _settled(world))
    world.run_until(world.now_ms + LATE_MS)
    _raise_floor(world, max(world.operator.record.floor_ms, BEGIN_MS) + 1)   # an exchange, above all
    world.run_until(world.now_ms + world.options.write_window_ms + 20 * world.options.skew_ms)
    _raise_floor(world, highest(world.now_ms, world.options.write_window_ms))
    _judge_rest(world)
    world.judge.settled = True
    _judge_reads(world)


def _raise_floor(world: RangeWorld, floor_ms: int) -> None:
    """Have all owners exchange what they hold, and judge them."""

    def risen() -> bool:
        operator = world.operator
        if operator.round is None and _settled(world):
            operator.raise_floor(floor_ms)      # a disk that withdrew has ended the round before
        return operator.record.floor_ms >= floor_ms

    wait(world, "the floor rises", risen)
    wait(world, "no move is open, and no owner's disk is gone", lambda: _settled(world))
    wait(world, "every node has come to rest", lambda: all(_rests(world, node) for node in world.nodes.values()))
    _judge_owners(world)


def wait(world: RangeWorld, what: str, holds: Callable[[], bool]) -> None:
    """Wait for a fact that the product must bring about without faults."""
    latest_ms = world.now_ms + LATEST_MS
    while not holds():
        if world.now_ms >= latest_ms:
            raise Violation("liveness", f"{LATEST_MS // 1_000} s without faults, and not yet: {what}")
        world.run_until(world.now_ms + LOOK_MS)


def _settled(world: RangeWorld) -> bool:
    record = world.operator.record
    return record.pending is None and not any(world.operator.is_gone(member) for member in record.own.members)


def _rests(world: RangeWorld, node: Node) -> bool:
    plane, record = node.plane, world.operator.record
    known = plane.records.get(UNIT)
    return known == record and plane.idle and not node.disk.queue


def _judge_owners(world: RangeWorld) -> None:
    """All owners hold the same rows; of a Meta row they share the clear (D58)."""
    record = world.operator.record
    first: dict[Place, Any] | None = None
    for member in record.own.members:
        rows = rows_of(world.nodes[member.node])
        left: dict[Place, Any] = dict(kept(rows, record.floor_ms))
        for place, row in rows.items():
            if isinstance(row, Meta):
                left.pop(place, None)
                if row.cleared.ms > record.floor_ms:
                    left[place] = row.cleared
        if first is None:
            first = left
        elif left != first:
            differ = [place for place in {**first, **left} if first.get(place) != left.get(place)]
            raise Violation("owners differ", f"{member} and {record.own.members[0]} at {differ[:3]}")


def _judge_rest(world: RangeWorld) -> None:
    """No node holds a hint, owners hold nothing that the floor collects, and other nodes hold nothing at all.

    The row of a key without a clear says nothing below the floor, and may stay as long as the key has an element.
    """
    record = world.operator.record
    for node in world.nodes.values():
        rows = rows_of(node)
        left = kept(rows, record.floor_ms) if node.member in record.own.members else {}
        keys = {place.key for place in left if place.sort is Sort.ELEMENT}
        void = [place for place, row in rows.items() if left.get(place) != row
                and not (isinstance(row, Meta) and row.cleared == ZERO and place.key in keys)]
        if void:
            raise Violation("left over", f"{node.member} still holds {void[:3]} below {record.floor_ms}")
        if hints := node.disk.durable_tables.scan(HINTS):
            raise Violation("left over", f"{node.member} still holds {len(hints)} hints")


def rows_of(node: Node) -> dict[Place, Row]:
    """Return the rows of the range on a node's disk."""
    return {
        (place := place_of(key)): decode_row(place.sort, value)
        for sort, family in FAMILIES.items()
        for key, value in node.disk.durable_tables.scan(family, *span_of(UNIT, sort))
    }


def _judge_reads(world: RangeWorld) -> None:
    """Every node answers, and what it shows is judged like any other answer."""
    counts = world.trace.counts
    read, refused = counts.get("read_ok", 0), len(world.nodes) * (len(SETS) + len(MAPS))
    for node in world.nodes.values():
        for key in (*SETS, *MAPS):
            world.clients.page(node, key)
        for key in world.judge.strings():
            refused += 1
            world.clients.get(node, key)
    world.run_until(world.now_ms + 3_000)
    if counts.get("read_ok", 0) < read + refused:
        raise Violation("liveness", f"{counts.get('read_ok', 0) - read} of {refused} last reads were answered")
