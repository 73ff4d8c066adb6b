"""Named subscriptions on three nodes: kept in the log, asked of the leader, there after a restart, and pinning."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from node_harness import GROUP, SHARD, Appender, OperatorHand, batch, push_map, read_all, shard_map
from prometheus_client import generate_latest
from tidemark_core.base.entry import Kind
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.limits import Limits
from tidemark_core.base.refusals import Reason
from tidemark_core.replication.messages import PositionCommitted, SubscriptionDeleted
from tidemark_core.subscriptions.fold import NAMES_MAX
from tidemark_core.subscriptions.view import SubscriptionsView, SubscriptionView
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_node.subscriptions import in_records
from tidemark_wire import channel, status
from tidemark_wire.subscriptions import (
    committed_from_proto,
    deleted_from_proto,
    subscriptions_from_proto,
    subscriptions_to_proto,
)
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from tests.waiting import until

LEASE = 60_000
MIB = 1 << 20


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    made = [make(tmp_path, name) for name in "abc"]
    for node in made:
        await node.start()
    yield made
    for node in made:
        if not node.draining.is_set():
            await node.stop()


def make(directory: Path, name: str) -> Node:
    settings = Settings(node=name, data=directory / name, metrics_listen="off", disk_reserve_bytes=1 << 20)
    return Node(settings, Limits(retention_look_ms=100))


async def push(nodes: list[Node], version: int, **group: int) -> None:
    pushed = shard_map([(node.me, node.address) for node in nodes], "a", version, **group)
    for node in nodes:
        await push_map(node.address, pushed)


async def lead(nodes: list[Node], operator: OperatorHand, **group: int) -> Appender:
    await push(nodes, 1, **group)
    for node in nodes:
        await operator.link(node.me.node, node.address)
    await operator.elect(1, nodes[0].me, tuple(node.me for node in nodes))
    return Appender(nodes[0].address)


async def call(address: str, method: str, request: Any) -> Any:
    async with channel.open_channel(address) as opened:
        return await getattr(node_pb2_grpc.TidemarkStub(opened), method)(request, timeout=10)


async def commit(node: Node, name: str, offset: int, lease_ms: int = LEASE, **fields: Any) -> PositionCommitted:
    request = node_pb2.CommitPositionRequest(
        **{"group": GROUP, "shard": 0, "subscription": name, "offset": offset, "lease_ms": lease_ms, **fields}
    )
    return committed_from_proto(await call(node.address, "CommitPosition", request))


async def standing(node: Node) -> dict[str, int]:
    answer = await call(node.address, "Subscriptions", node_pb2.SubscriptionsRequest(group=GROUP, shard=0))
    return {each.name: each.offset for each in subscriptions_from_proto(answer).subscriptions}


async def delete(node: Node, name: str) -> SubscriptionDeleted:
    request = node_pb2.DeleteSubscriptionRequest(group=GROUP, shard=0, subscription=name)
    return deleted_from_proto(await call(node.address, "DeleteSubscription", request))


async def refusal(work: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work
    hinted = status.refusal_from_rpc_error(caught.value)
    assert hinted is not None
    return hinted.refused


async def test_positions_are_committed_listed_and_deleted(nodes: list[Node], operator: OperatorHand):
    appender = await lead(nodes, operator)
    for sequence in range(5):
        await appender.append(batch(sequence))

    assert PositionCommitted(1, 3) == await commit(nodes[0], "one", 3)
    assert PositionCommitted(1, 3) == await commit(nodes[0], "one", 2)
    assert PositionCommitted(1, 5) == await commit(nodes[0], "two", 5)
    assert {"one": 3, "two": 5} == await standing(nodes[0])
    assert PositionCommitted(1, 2) == await commit(nodes[0], "one", 2, seek=True)
    assert {"one": 2, "two": 5} == await standing(nodes[0])
    counted = generate_latest(nodes[0].metrics.registry).decode()
    assert "tidemark_subscriptions 2.0" in counted
    assert "tidemark_position_commits_total 4.0" in counted
    held = nodes[0].driver.core.log.shards[SHARD].replica.log.bytes_total
    assert f"tidemark_subscription_pinned_bytes {float(held)}" in counted
    assert SubscriptionDeleted(1, True) == await delete(nodes[0], "one")
    assert SubscriptionDeleted(1, False) == await delete(nodes[0], "one")
    assert {"two": 5} == await standing(nodes[0])

    entries = await read_all(nodes[0].address)
    assert [0, 1, 2, 3, 4] == [entry.sequence for entry in entries if entry.kind is Kind.DATA]
    await appender.close()


async def test_a_lag_is_in_records_and_0_when_all_were_read(nodes: list[Node], operator: OperatorHand):
    """Control entries between them, and those that the commits themselves leave behind, are nobody's to read."""
    appender = await lead(nodes, operator)
    bases = []
    for sequence in range(6):
        bases.append((await appender.append(batch(sequence, count=3))).base)
        await commit(nodes[0], "between", bases[-1])
    for name, offset in (("all", bases[-1] + 3), ("half", bases[3]), ("inside", bases[3] + 1), ("none", 0)):
        await commit(nodes[0], name, offset)
    assert {"all": 0, "between": 3, "half": 9, "inside": 8, "none": 18} == await lags(nodes[0])
    await appender.close()


async def lags(node: Node) -> dict[str, int]:
    answer = await call(node.address, "Subscriptions", node_pb2.SubscriptionsRequest(group=GROUP, shard=0))
    return {each.name: each.lag for each in subscriptions_from_proto(answer).subscriptions}


@pytest.mark.parametrize(
    ("offset", "lag"), [(0, 10 + 8), (9, 1 + 8), (10, 8), (12, 6), (14, 4), (15, 4), (17, 3), (20, 0), (99, 0)]
)
def test_a_lag_counts_records_as_far_back_as_they_are_known(offset: int, lag: int):
    """Records at 10 to 13 and 16 to 19; what lies in front of 10 was not looked at."""
    view = SubscriptionsView(1, 0, 21, (SubscriptionView("name", offset, LEASE, 0, LEASE, 7, 0),))
    (counted,) = in_records(view, 10, [(10, 12), (13, 13), (16, 19)]).subscriptions
    assert (offset, lag) == (counted.offset, counted.lag)


async def test_what_cannot_be_is_refused_by_name(nodes: list[Node], operator: OperatorHand):
    appender = await lead(nodes, operator)
    for work, reason, said in (
        (commit(nodes[0], "a/b", 0), Reason.INVALID_SPEC, "subscription"),
        (commit(nodes[0], "a", 99), Reason.INVALID_SPEC, "offset is 99"),
        (commit(nodes[0], "a", 0, 1), Reason.INVALID_SPEC, "lease_ms is 1"),
        (commit(nodes[0], "a", 0, shard=9), Reason.UNKNOWN_SHARD, "shard 9"),
        (commit(nodes[1], "a", 0), Reason.NOT_LEADER, ""), (standing(nodes[1]), Reason.NOT_LEADER, ""),
        (delete(nodes[0], ""), Reason.INVALID_SPEC, "subscription"),
    ):
        refused = await refusal(work)
        assert (reason, True) == (refused.reason, said in refused.message)
    assert {} == await standing(nodes[0])
    await appender.close()


async def test_all_nodes_know_them_and_know_them_again_when_they_start_anew(
    tmp_path: Path, nodes: list[Node], operator: OperatorHand
):
    """The name stands in the payload of its record: of these a restart reads the payload too."""
    appender = await lead(nodes, operator)
    await appender.append(batch(0))
    await commit(nodes[0], "one", 2)
    await commit(nodes[0], "x" * 128, 1)

    def known(node: Node) -> dict[str, int]:
        subscriptions = node.driver.core.log.shards[SHARD].replica.log.subscriptions
        return {name: position.offset for name, position in subscriptions.held.items()} | {
            each.name: each.position.offset for each in subscriptions.undecided
        }

    await until(lambda: all({"one": 2, "x" * 128: 1} == known(node) for node in nodes))
    await appender.close()
    for node in nodes:
        await node.stop()
    for name in "abc":
        again = make(tmp_path, name)
        assert {"one": 2, "x" * 128: 1} == known(again)
        await again.driver.stop()


async def test_a_pin_holds_the_log_until_its_reader_goes_on_and_the_hard_bound_wins(
    nodes: list[Node], operator: OperatorHand
):
    appender = await lead(nodes, operator, retention_bytes=2 * MIB, retention_bytes_hard=8 * MIB)
    sequence = 0

    async def fill(count: int) -> None:
        nonlocal sequence
        for _ in range(count):
            await appender.append(batch(sequence, bytes(MIB)))
            sequence += 1

    def first(node: Node) -> int:
        return node.driver.core.log.status(SHARD)["first"]

    async def until_first_is(least: int) -> None:
        await until(lambda: all(first(node) >= least for node in nodes))

    await commit(nodes[0], "slow", 1)
    await fill(6)
    await until(lambda: any("'slow' stands at 1" in told["detail"] for told in nodes[0].driver.story))
    assert [0, 0, 0] == [first(node) for node in nodes], "the EPOCH_START is in one stretch with what is pinned"
    await commit(nodes[0], "slow", 6)
    await until_first_is(4)
    assert 6 >= first(nodes[0])
    await fill(10)
    await until_first_is(7)
    assert nodes[0].driver.core.log.status(SHARD)["bytes"] <= 9 * MIB
    assert "tidemark_pin_overruns_total 1.0" in generate_latest(nodes[0].metrics.registry).decode()
    await appender.close()


async def test_callers_that_wait_are_bounded(nodes: list[Node], operator: OperatorHand):
    appender = await lead(nodes, operator)
    waiting = nodes[0].budgets.positions
    assert waiting.take("another client", waiting.total)
    assert Reason.OVERLOADED is (await refusal(commit(nodes[0], "one", 0))).reason
    waiting.give_back("another client", waiting.total)
    await commit(nodes[0], "one", 0)
    assert 0 == waiting.used
    await appender.close()


def test_a_list_that_is_too_long_is_refused_by_its_reader():
    def view(count: int) -> SubscriptionsView:
        each = tuple(SubscriptionView(f"n{number}", 1, 2, 3, -4, 5, 6) for number in range(count))
        return SubscriptionsView(7, 8, 9, each)

    assert view(NAMES_MAX) == subscriptions_from_proto(subscriptions_to_proto(view(NAMES_MAX)))
    with pytest.raises(RemoteViolation, match="1001 subscriptions"):
        subscriptions_from_proto(subscriptions_to_proto(view(NAMES_MAX + 1)))
