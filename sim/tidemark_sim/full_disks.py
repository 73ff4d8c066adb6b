"""The last part of runs of one profile: some disks are full, and nothing else is broken.

Reads go on, trims reach the members with full disks (K21), and writes resume when space comes back (K20).
Stays out: what a leader may append meanwhile (`checkers.space`); full disks in the midst of other troubles (`faults`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import Space
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import ReadRequest, TrimRequest
from tidemark_core.replication.messages import ReadGrant

from .trace import Violation

if TYPE_CHECKING:
    from .node import Node
    from .world import World

APPENDS = 12
EVERY_MS = 60
FOUND_MS = 5_000
EVERYTHING = 1 << 40


def watch(world: World) -> None:
    """Fill disks of one shard's members, write, read and trim, then give the space back."""
    if world.options.profile != "space":
        return
    shard = world.dice.pick(world.shards)
    record = world.metadata.record(shard)
    assert record.leader is not None
    leader = world.nodes[record.leader.node]
    members = [world.nodes[member.node] for member in record.ensemble]
    full = world.dice.shuffled(members)[: world.dice.between(1, len(members))]
    for node in full:
        node.set_space(Space.EXHAUSTED if world.dice.chance(0.5) else Space.FULL)
    producers = [producer for producer in world.producers if producer.shard == shard]
    for _ in range(APPENDS):
        for producer in producers:
            if not producer.outstanding:
                producer.append()
        world.run_until(world.now_ms + EVERY_MS)
    _reads(world, leader, shard)
    _trims(world, leader, members, shard)
    for node in full:
        node.set_space(Space.FREE)


def _reads(world: World, leader: Node, shard: ShardId) -> None:
    value = _ask(world, leader, ReadRequest(shard, world.request_number(), -1))
    if not isinstance(value, ReadGrant) and not _not_kept(value):
        raise Violation("K20", f"{leader.name} does not serve reads while disks are full: {value}")


def _not_kept(value: Any) -> bool:
    return isinstance(value, Refused) and value.reason is Reason.NOT_HELD


def _trims(world: World, leader: Node, members: list[Node], shard: ShardId) -> None:
    _ask(world, leader, TrimRequest(shard, world.request_number(), EVERYTHING))
    wanted = _first(leader, shard)
    world.trace.count("trims_on_full_disks", wanted > 0)
    deadline = world.now_ms + FOUND_MS
    while late := [node.name for node in members if _first(node, shard) < wanted]:
        if world.now_ms >= deadline:
            raise Violation("K21", f"{', '.join(late)} did not hear of the trim to {wanted} in {FOUND_MS} ms")
        world.run_until(world.now_ms + EVERY_MS)


def _first(node: Node, shard: ShardId) -> int:
    assert node.core is not None
    return node.core.log.shards[shard].replica.log.first


def _ask(world: World, node: Node, event: Any) -> Any:
    answers: list[Any] = []
    node.request(event, answers.append)
    deadline = world.now_ms + FOUND_MS
    while not answers:
        if world.now_ms >= deadline:
            raise Violation("K20", f"{node.name} does not answer {event} in {FOUND_MS} ms")
        world.run_until(world.now_ms + EVERY_MS)
    return answers[0]
