"""An operator dies between every pair of its steps; a fresh one goes on from the stored record alone.

A step is a write of metadata or a message.  For every operation the operator dies in front of each of them in
turn, alone or together with the leader, and for every write also with its answer lost.  Whatever it had done by
then, the cluster must end settled, with all acknowledged batches, and able to append and change again.  Oxia
#798, #781 and #788: an ensemble was stored before its election succeeded, the next change began from a state
half moved, and waiting for a follower to catch up blocked the loop.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidemark_core.base.ids import Member
from tidemark_core.base.metadata import SaveMetadata
from tidemark_core.replication.messages import Operation, SnapshotInstalled
from tidemark_core.replication.records import Phase, Status

from .support import OTHER_PRODUCER, Cluster, Operator, batch

SETTINGS = {"takeover_ms": 300, "retry_ms": 50, "change_timeout_ms": 2_000}


def begin() -> Cluster:
    """Five nodes of which a, b, c hold the shard, a leads, three batches are acknowledged and one is pending."""
    cluster = Cluster("abcde", ensemble="abc", settings=SETTINGS)
    cluster.start_operator("op/1")
    cluster.settle()
    for sequence in range(3):
        cluster.appended(batch(sequence))
    cluster.settle()
    assert "a" == cluster.leader.me.node
    cluster.append(batch(3))
    return cluster


def swap(cluster: Cluster) -> None:
    cluster.change(Operation.SWAP, "c", "d")


def expand(cluster: Cluster) -> None:
    cluster.change(Operation.EXPAND, None, "d")


def contract(cluster: Cluster) -> None:
    cluster.change(Operation.CONTRACT, "c", None, force=True)


def election(cluster: Cluster) -> None:
    cluster.crash("a")


def transfer(cluster: Cluster) -> None:
    cluster.transfer("b")


def abort(cluster: Cluster) -> None:
    """A swap that is cancelled while its snapshot is pulled."""
    request = cluster.change(Operation.SWAP, "c", "d")
    operator = cluster.operators["op/1"]
    assert cluster.run_until(lambda: bool(cluster.nodes["d"].pulls or cluster.answer(request)) or not operator.alive)
    if operator.alive:
        cluster.cancel()


OPERATIONS: dict[str, Callable[[Cluster], None]] = {
    operation.__name__: operation for operation in (swap, expand, contract, election, transfer, abort)
}
ENDS = {
    "swap": ["abc", "abd"], "expand": ["abc", "abcd"], "contract": ["abc", "ab"], "election": ["abc"],
    "transfer": ["abc"], "abort": ["abc"],
}


def boundaries(operation: str) -> list[str]:
    """Run the operation undisturbed; return what its operator did, step by step."""
    cluster = begin()
    operator = cluster.operators["op/1"]
    before = len(operator.boundaries)
    OPERATIONS[operation](cluster)
    cluster.run_for(1_000)
    cluster.check()
    return operator.boundaries[before:]


STEPS = {operation: boundaries(operation) for operation in OPERATIONS}
CASES = [
    pytest.param(operation, at, id=f"{operation}-{at}-{name.replace(' ', '-')}")
    for operation, steps in STEPS.items()
    for at, name in enumerate(steps)
]
SAVES = [
    pytest.param(operation, at, id=f"{operation}-{at}-{name.replace(' ', '-')}")
    for operation, steps in STEPS.items()
    for at, name in enumerate(steps)
    if name.startswith("save")
]


def nodes_of(members: tuple[Member, ...]) -> str:
    return "".join(sorted(member.node for member in members))


def goes_on(cluster: Cluster, operation: str) -> None:
    """Everybody is back, a fresh operator works: the cluster settles, keeps what it said, and changes again."""
    cluster.settle()
    assert nodes_of(cluster.record.ensemble) in ENDS[operation]
    assert (Status.STEADY, None, ()) == (cluster.record.status, cluster.record.change, cluster.record.removed)
    for sequence in range(4):
        cluster.appended(batch(sequence))
    cluster.appended(batch(0, producer=OTHER_PRODUCER))
    leaver = cluster.followers()[0].me.node
    request = cluster.change(Operation.SWAP, leaver, "e")
    cluster.settle()
    assert "e" in nodes_of(cluster.record.ensemble), f"the next change ended as {cluster.answer(request)}"
    assert 5 == len(cluster.acked)
    cluster.check()


@pytest.mark.parametrize(("operation", "at"), CASES)
@pytest.mark.parametrize("with_leader", [False, True], ids=["operator", "operator and leader"])
def test_issue_798_781_788_o2_a_fresh_operator_goes_on_wherever_the_last_one_died(
    operation: str, at: int, with_leader: bool
) -> None:
    """Oxia #798, #781, #788; rule O2: everything an operator must know to go on is stored before it is done."""
    cluster = begin()
    operator = cluster.operators["op/1"]
    operator.steps_left = at
    OPERATIONS[operation](cluster)
    cluster.run_until(lambda: not operator.alive, 3_000)
    assert not operator.alive, f"{operation} has fewer steps than before: {operator.boundaries}"
    leader = cluster.record.leader.node if cluster.record.leader else "a"
    if with_leader and cluster.nodes[leader].alive:
        cluster.crash(leader)
    cluster.run_for(20)   # what was under way arrives
    cluster.check()
    cluster.start_operator("op/2")
    cluster.run_for(500)
    for node in cluster.nodes.values():
        if not node.alive:
            cluster.restart(node.me.node)
    goes_on(cluster, operation)


@pytest.mark.parametrize(("operation", "at"), SAVES)
@pytest.mark.parametrize("fate", ["lost", "unanswered"])
def test_h2_a_write_of_unknown_outcome_is_read_back_and_the_operation_goes_on(
    operation: str, at: int, fate: str
) -> None:
    """Rule H2: the write vanished, or it is stored and the answer was lost; the operator cannot tell at first."""
    cluster = begin()
    saves_before = sum(name.startswith("save") for name in STEPS[operation][:at])
    seen = 0
    save = cluster.save

    def disturbed(operator: Operator, effect: SaveMetadata) -> None:
        nonlocal seen
        if seen == saves_before:
            cluster.saves_lost = int(fate == "lost")
            cluster.saves_unanswered = int(fate == "unanswered")
        seen += 1
        save(operator, effect)

    cluster.save = disturbed  # type: ignore[method-assign]
    OPERATIONS[operation](cluster)
    cluster.run_for(500)
    for node in cluster.nodes.values():
        if not node.alive:
            cluster.restart(node.me.node)
    assert seen > saves_before
    goes_on(cluster, operation)


@pytest.mark.parametrize(("operation", "at"), CASES)
def test_o3_two_operators_at_once_never_lose_an_acknowledged_batch(operation: str, at: int) -> None:
    """Rule O3: they may disturb each other, so the shard may be busy electing; what was acknowledged stays."""
    cluster = begin()
    first = cluster.operators["op/1"]
    first.steps_left = at
    OPERATIONS[operation](cluster)
    ends = "swap" if operation == "abort" and not first.alive else operation   # it died before it was asked to cancel
    cluster.run_until(lambda: not first.alive, 3_000)
    first.alive, first.steps_left = True, None     # it was only slow, and wakes up beside its successor
    cluster.start_operator("op/2")
    cluster.run_for(1_000)
    cluster.check()
    for node in cluster.nodes.values():
        if not node.alive:
            cluster.restart(node.me.node)
    cluster.run_for(2_000)
    first.alive = False
    goes_on(cluster, ends)


def test_o3b_a_second_operator_leaves_a_change_to_the_driver_that_shows_progress() -> None:
    cluster = begin()
    held = cluster.rule("hold", SnapshotInstalled)
    swap(cluster)
    assert cluster.run_until(lambda: bool(held.caught))
    cluster.start_operator("op/2")
    cluster.run_for(5 * SETTINGS["takeover_ms"])
    assert cluster.record.change is not None and Phase.PREPARE is cluster.record.change.phase
    cluster.lift(held)
    cluster.settle()

    assert "abd" == nodes_of(cluster.record.ensemble)


def test_o3b_a_second_operator_takes_a_change_over_from_a_driver_that_is_gone() -> None:
    cluster = begin()
    held = cluster.rule("drop", SnapshotInstalled)
    swap(cluster)
    assert cluster.run_until(lambda: bool(held.caught))
    cluster.start_operator("op/2")
    cluster.run_for(SETTINGS["takeover_ms"])
    cluster.operators["op/1"].alive = False
    cluster.lift(held)
    cluster.run_for(3 * SETTINGS["takeover_ms"])

    assert "abc" == nodes_of(cluster.record.ensemble)
    goes_on(cluster, "swap")


def test_every_phase_of_a_change_is_among_the_steps() -> None:
    for operation in ("swap", "expand", "contract"):
        phases = {name for name in STEPS[operation] if name.startswith("save")}
        assert {f"save RECONFIGURATION {phase}" for phase in Phase} <= phases
        assert {"send Prepare", "send Commit"} <= set(STEPS[operation])
    assert {"save ELECTION", "save STEADY", "send Fence", "send BecomeLeader"} <= set(STEPS["election"])
    assert {"send Abort"} <= set(STEPS["abort"])
    assert {"send PrepareTransfer"} <= set(STEPS["transfer"])
