"""A member without a replica is seeded again in its own slot, and becomes whole at the worst moment (N11b)."""

from __future__ import annotations

from scenario import Scenario
from tidemark_core.base.effects import Send
from tidemark_core.base.ids import OperatorId, of_shard
from tidemark_core.replication.messages import DeleteShard, Prepare
from tidemark_core.replication.records import Status
from tidemark_core.replication.replica import Role
from tidemark_core.shard import Shard
from tidemark_sim.operators import Operator


class Reseeding(Scenario):
    """n3 lost its replica; the swap into its own slot is aborted while n3 pulls, and n3 is reported as missing."""

    def __init__(self) -> None:
        super().__init__(3, 3, pull_retry_ms=5)
        self.lost: set[type] = set()   # kinds of messages of the operator that do not arrive
        send = self.world.send_from_operator

        def lossy(operator: Operator, effect: Send) -> None:
            if type(effect.message) not in self.lost:
                send(operator, effect)

        self.world.send_from_operator = lossy  # type: ignore[method-assign]   # the network drops no single kind
        self.wait_led(1)
        self.acknowledge(1)
        self.wait_settled()
        self.crash(3)   # the restart is what asks n3 where it stands
        self.start(3)
        self.wait_settled()
        self.cut(1, 3)
        node = self.world.nodes["n3"]
        late = DeleteShard(self.record.epoch, self.record.election)
        self.world.faults.deleting = node
        node.receive(of_shard(self.shard), OperatorId("op1.gone"), node.member, late)
        self.world.faults.deleting = None
        self.wait(lambda: self.role is Role.DELETED, "n3 has no replica")
        self.crash(3)
        self.start(3)
        self.wait(lambda: self.role is Role.SEEDING, "n3 is swapped into its own slot")
        self.lost.add(Prepare)   # of the next swap: n3 becomes whole while it is under way
        self.wait(
            lambda: self.record.change is not None and self.record.epoch > self.node_epoch, "the swap is begun again")
        self.mend(1, 3)
        self.wait(lambda: self.role is not Role.SEEDING, "n3 is whole")

    @property
    def role(self) -> Role:
        return self._held.replica.state.role

    @property
    def node_epoch(self) -> int:
        return self._held.replica.state.epoch

    @property
    def _held(self) -> Shard:
        core = self.world.nodes["n3"].core
        assert core is not None
        return core.log.shards[self.shard]

    def acknowledge(self, number: int) -> None:
        sequence = self.append(number)
        self.wait(lambda: self.acknowledged(sequence), "the batch is acknowledged")


def test_n11b_a_replica_that_became_whole_is_not_wiped_by_the_swap_that_found_it_missing() -> None:
    """n1 and n3 alone hold an acknowledged record; then the disk of n1 is lost, which the shard survives."""
    story = Reseeding()
    story.cut(1, 2)
    story.acknowledge(1)   # by n1 and n3
    held = story.log(3)
    story.lost.clear()
    story.cut(1, 3)
    story.run(500)
    story.crash(1)
    story.world.nodes["n1"].wipe()
    story.join([("n1", "n2"), ("n1", "n3")])
    story.wait(lambda: story.record.status is Status.STEADY and story.leader == "n3", "n3 leads")
    story.start(1)
    story.finish()
    assert held == story.log(3)[: len(held)] and story.member(1) in story.record.ensemble
