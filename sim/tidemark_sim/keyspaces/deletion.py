"""The deletion of the keyspace behind a run: nodes die, old records come late, and nothing may be left.

Clients go on meanwhile: what they are answered is judged as before.  Stays out: how a node forgets (core).
"""

from __future__ import annotations

from tidemark_core.base.ids import KEYSPACE_PLANE
from tidemark_core.optimistic.hinting.keeping import HINTS, PROMISES
from tidemark_core.optimistic.holding.layout import FAMILIES
from tidemark_core.optimistic.messages import RingTold

from ..trace import Violation
from .clients import STRINGS
from .healing import LATE_MS, wait
from .node import Node
from .operator import AT, UNIT
from .world import RangeWorld

STEPS = 30


def delete(world: RangeWorld) -> None:
    """Delete the keyspace, and judge the disks."""
    dice, operator, network = world.dice, world.operator, world.network.options
    world.judge.settled = world.judge.strict
    operator.deletes = True
    network.loss, network.repeat, network.straggle = 0.05, 0.1, 0.1
    for _ in range(STEPS):
        node = dice.pick(list(world.nodes.values()))
        act = dice.pick((_write, _write, _read, _crash, _give_old))
        act(world, node)
        world.run_until(world.now_ms + dice.between(1, 30))
    world.network.calm()
    for node in world.nodes.values():
        node.start()
    wait(world, "every node has forgotten the keyspace", lambda: operator.forgot >= set(world.members))
    for node in world.nodes.values():
        _give_old(world, node)
    world.run_until(world.now_ms + LATE_MS)
    for node in world.nodes.values():
        _judge(node)


def _write(world: RangeWorld, node: Node) -> None:
    if node.core is not None and UNIT in node.plane.records:
        world.clients.set(node, world.dice.pick(STRINGS))


def _read(world: RangeWorld, node: Node) -> None:
    if node.core is not None and UNIT in node.plane.records:
        world.clients.get(node, world.dice.pick(STRINGS))


def _crash(world: RangeWorld, node: Node) -> None:
    world.faults.crash(node)


def _give_old(world: RangeWorld, node: Node) -> None:
    """Give a node the record that was: by a map, by the operator, and by each other node."""
    world.operator.push(node.name)
    world.operator.announce(node.member)
    for other in world.nodes.values():
        if other is not node:
            told = RingTold(UNIT, world.operator.record)
            world.network.send(other.name, node.name, node.receive, AT, other.member, node.member, told)


def _judge(node: Node) -> None:
    tables = node.disk.durable_tables
    rows = {family: len(found) for family in (*FAMILIES.values(), HINTS, PROMISES) if (found := tables.scan(family))}
    records = [address.id for address in tables.units if address.plane == KEYSPACE_PLANE]
    if rows or records or UNIT in node.plane.records:
        raise Violation("left over", f"{node.member} still holds {rows} and {records} of a keyspace that is deleted")
