"""A recovery of the metadata store: two rounds of questions to some nodes, and the records that follow (N1-N10).

The first round finds the epochs to promise.  The records are made of the answers of nodes that promised in time.  No
operator starts meanwhile.  A shard in doubt keeps its record, as if the missing nodes had been brought back first.
Where only disks are lost, records stay, and a person accepts the loss of the shards that are given up (N14).
Stays out: when the store loses everything (`faults`), the records (core's `recovery`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark_core.base.ids import Member, ShardId
from tidemark_core.replication.floors import PromiseRequest
from tidemark_core.replication.recovery import ReplicaReport, find_record, newest_facts

if TYPE_CHECKING:
    from .node import Node
    from .world import World

ANSWERS = 0.85
"""Chance that a node that is up answers a round."""

ASK_MS_MAX = 30
PATIENCE_MS = (20, 150)
"""Least and greatest time that promises have to arrive."""

Reports = dict[ShardId, list[ReplicaReport]]


def rebuild(world: World, given_up: Collection[ShardId] = ()) -> None:
    """Begin a recovery; operators may not run.  With shards that are given up it is one of these alone."""
    up = [node for node in world.nodes.values() if node.core is not None and world.dice.chance(ANSWERS)]
    reports: Reports = {
        shard: [node.core.log.report(shard) for node in up if node.core and shard in node.core.log.shards]
        for shard in given_up or world.shards
    }
    answered = {node.member for node in up}
    silent = _silent(world, reports, answered)
    floors = {}
    for shard, known in reports.items():
        found = find_record(
            shard, known, answered, silent, lineage=world.lineage(), **_consent(world, shard, given_up))
        # Lost again before anybody heard of the epochs allocated since: the same numbers would be given out twice.
        if found.record is not None and world.metadata.record(shard).epoch < found.record.epoch:
            floors[shard] = found.record.epoch
        elif found.record is None:
            world.trace.count(f"metadata_doubt_{found.doubt}")
    if floors:
        _Round(world, up, floors, given_up).begin()


def _consent(world: World, shard: ShardId, given_up: Collection[ShardId]) -> dict[str, Any]:
    return {"stored": world.metadata.record(shard), "accept": True} if shard in given_up else {}


def _silent(world: World, reports: Reports, answered: Collection[Member]) -> int:
    """Return how many disks did not answer, those that are gone included (N7)."""
    facts = filter(None, map(newest_facts, reports.values()))
    named = {member for known in facts for member in known.named}
    here = {member.node for member in answered}
    wiped = {member for member in named.difference(answered) if member.node in here}
    return len(world.nodes) - len(here) + len(wiped)


class _Round:
    """The second round: promises, then records (N10)."""

    def __init__(
        self, world: World, nodes: list[Node], floors: Mapping[ShardId, int], given_up: Collection[ShardId]
    ) -> None:
        self.world = world
        self.given_up = given_up
        self.nodes = nodes
        self.floors = floors
        self.answers: dict[Member, tuple[ReplicaReport, ...]] = {}

    def begin(self) -> None:
        world = self.world
        world.metadata.lost = True
        world.checkers.floors_asked(self.floors)
        for node in self.nodes:
            if world.dice.chance(ANSWERS):
                world.after(world.dice.between(1, ASK_MS_MAX), self._ask, node, node.member)
        world.after(world.dice.between(*PATIENCE_MS), self._end)

    def _ask(self, node: Node, member: Member) -> None:
        if node.member == member:
            event = PromiseRequest(self.world.request_number(), self.floors)
            node.request(event, partial(self._promised, node, member))

    def _promised(self, node: Node, member: Member, answer: Any) -> None:
        """Hear a node; an answer that comes after the records were written counts for nothing."""
        assert isinstance(answer, tuple), f"N10: {member} does not promise: {answer}"
        self.world.checkers.node_promised(node, self.floors)
        self.world.trace.count("promises")
        self.answers[member] = answer

    def _end(self) -> None:
        world, answers = self.world, dict(self.answers)
        world.metadata.lost = False
        reports: Reports = {shard: [] for shard in self.floors}
        for said in answers.values():
            for report in said:
                reports[report.shard].append(report)
        silent = _silent(world, reports, answers)
        for shard, floor in self.floors.items():
            if any(report.epoch >= floor for report in reports[shard]):
                world.trace.count("metadata_floor_too_low")
                continue
            found = find_record(
                shard, reports[shard], answers, silent, floor=floor, lineage=world.lineage(),
                **_consent(world, shard, self.given_up))
            world.trace.count("metadata_rebuilt" if found.record else f"metadata_doubt_{found.doubt}")
            if found.record is not None and world.metadata.record(shard).epoch < found.record.epoch:
                world.metadata.rebuild(shard, found.record)
