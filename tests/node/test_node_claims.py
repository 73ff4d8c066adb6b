"""Claims on a node: one process has a producer at a time, and a claim says where its batches end (L26, L27)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from node_harness import GROUP, Appender, OperatorHand, batch, push_map, read_all, shard_map
from prometheus_client import generate_latest
from tidemark_core.base.entry import Batch, Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Appended, Claimed
from tidemark_core.replication.producer_ids import claim_of, named
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_wire.frames import AppendCall
from tidemark_wire.wire_version import VERSION_OF_CLAIMS

NAME = named("copy-job/7")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(Settings(node="a", data=tmp_path / "a", metrics_listen="off", disk_reserve_bytes=1 << 20))
    await made.start()
    yield made
    await made.stop()


async def push(node: Node, version: int, others: dict[str, int] | None = None, **group: Any) -> None:
    """Push a map whose shard is on `node` alone, or on others too, with their wire versions."""
    pushed = shard_map([(node.me, node.address)], "a", version, **group)
    for name, wire_version in (others or {}).items():
        pushed.nodes.add(node=name, incarnation="x", address="127.0.0.1:1", wire_version=wire_version)
        pushed.groups[0].shards[0].ensemble.append(name)
    await push_map(node.address, pushed)


async def lead(node: Node, operator: OperatorHand) -> None:
    await push(node, 1)
    await operator.link("a", node.address)
    await operator.elect(1, node.me, (node.me,))


def claim(fence: int, draw: int = 0, producer: bytes = NAME, payload: bytes = b"") -> Batch:
    return batch(claim_of(fence, draw), producer=producer)._replace(count=0, payload=payload)


def of(fence: int, number: int, draw: int = 0) -> Batch:
    """Return the batch of this number behind a claim."""
    return batch(claim_of(fence, draw) + number, b"%d" % number, producer=NAME)


async def test_l26_a_newer_claim_fences_the_older_process_and_says_where_it_ended(node: Node, operator: OperatorHand):
    await lead(node, operator)
    older, newer = Appender(node.address), Appender(node.address)
    assert await older.append(claim(1, 7)) == Claimed(1, 1, -1, 0, 0, 0)
    first, second = of(1, 1, 7), of(1, 2, 7)
    assert isinstance(await older.append(first), Appended)
    last = await older.append(second)

    taken = await newer.append(claim(2, 9))
    assert taken == Claimed(1, 4, second.sequence, 1, last.base, 1)
    assert await newer.append(claim(2, 9)) == taken, "a repetition has the same answer"
    refused = await older.append(of(1, 3, 7))
    assert isinstance(refused, Refused)
    assert (Reason.PRODUCER_FENCED, 2) == (refused.reason, refused.expected)
    again = await older.append(claim(1, 7))
    assert isinstance(again, Refused) and again.reason is Reason.PRODUCER_FENCED
    same = await older.append(claim(2, 8))
    assert isinstance(same, Refused) and same.reason is Reason.FENCE_TOO_LOW, "one fence is of one process"

    goes_on = await newer.append(of(2, 1, 9))
    assert isinstance(goes_on, Appended) and goes_on.base == taken.offset + 1
    kinds = [entry.kind for entry in await read_all(node.address)]
    assert kinds == [Kind.EPOCH_START, Kind.CLAIM, Kind.DATA, Kind.DATA, Kind.CLAIM, Kind.DATA]
    metrics = generate_latest(node.metrics.registry).decode()
    assert 'tidemark_appends_total{outcome="CLAIMED"} 3.0' in metrics
    assert 'tidemark_appends_total{outcome="PRODUCER_FENCED"} 2.0' in metrics
    assert 'tidemark_appends_total{outcome="FENCE_TOO_LOW"} 1.0' in metrics
    await older.close()
    await newer.close()


@pytest.mark.parametrize(("wrong", "field"), [
    (claim(1, producer=bytes(16)), "producer must be 16 bytes and not all zero"),
    (claim(1, payload=b"x"), "payload has 1 bytes"),
    (claim(0), "the fence 0, must be 1 to 2147483647"),
    (claim(1)._replace(sequence=-1), "the fence -1, must be 1 to"),
])
async def test_a_claim_that_is_wrong_is_refused_by_name(node: Node, operator: OperatorHand, wrong: Batch, field: str):
    await lead(node, operator)
    refused = await ask(node, wrong)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.INVALID_BATCH
    assert field in refused.message
    assert [entry.kind for entry in await read_all(node.address)] == [Kind.EPOCH_START]


async def test_documents_have_no_claimed_producers(node: Node, operator: OperatorHand):
    await lead(node, operator)
    await push(node, 2, kind="Documents")
    refused = await ask(node, claim(1))
    assert isinstance(refused, Refused) and refused.reason is Reason.WRONG_KIND


async def test_a_claim_waits_for_the_upgrade_of_every_member_and_names_those_to_upgrade(
    node: Node, operator: OperatorHand
):
    """A node of the release before cannot keep a log that has claims; of one that is down the map says nothing."""
    await lead(node, operator)
    await push(node, 2, {"b": VERSION_OF_CLAIMS - 1, "c": VERSION_OF_CLAIMS, "d": 0})
    refused = await ask(node, claim(1))
    assert isinstance(refused, Refused) and refused.reason is Reason.NEEDS_UPGRADE
    assert refused.message.endswith("upgrade b")
    assert isinstance(await ask(node, batch(0)), Appended), "batches need no upgrade"

    await push(node, 3, {"b": VERSION_OF_CLAIMS, "d": 0})
    assert isinstance(await ask(node, claim(1)), Claimed)


async def ask(node: Node, sent: Batch) -> Any:
    appender = Appender(node.address)
    try:
        await appender.send(AppendCall(1, GROUP, 0, sent))
        (answer,) = await appender.answers(1)
        return answer.value
    finally:
        await appender.close()
