"""Appends that expect an offset, over the wire to a real node (rule L29)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from node_harness import Appender, OperatorHand, batch
from prometheus_client import generate_latest
from test_node_claims import claim, lead, push
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Appended
from tidemark_node.main import Node
from tidemark_node.settings import Settings

OTHER = batch(0, producer=b"q" * 16)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(Settings(node="a", data=tmp_path / "a", metrics_listen="off", disk_reserve_bytes=1 << 20))
    await made.start()
    yield made
    await made.stop()


async def test_l29_a_node_appends_where_no_record_came_first_and_says_where_one_did(node: Node, operator: OperatorHand):
    await lead(node, operator)
    one, other = Appender(node.address), Appender(node.address)
    first = await one.append(batch(0), expect=0)
    assert isinstance(first, Appended)
    refused = await other.append(OTHER, expect=first.base)
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.expected) == (Reason.RECORD_CAME_FIRST, first.base + 1)
    assert await one.append(batch(0), expect=0) == first, "a retry is answered with its fate"
    taken = await one.append(claim(1))
    assert (await other.append(OTHER, expect=taken.offset)).expected == taken.offset + 1, "a claim is a record"
    assert (await other.append(OTHER, expect=taken.offset + 1)).base == taken.offset + 1
    assert 'tidemark_appends_total{outcome="RECORD_CAME_FIRST"} 2.0' in generate_latest(node.metrics.registry).decode()
    await one.close()
    await other.close()


async def test_documents_expect_by_write(node: Node, operator: OperatorHand):
    await lead(node, operator)
    await push(node, 2, kind="Documents")
    appender = Appender(node.address)
    refused = await appender.append(batch(0), expect=0)
    assert refused.reason is Reason.WRONG_KIND and "each write has its own condition" in refused.message
    await appender.close()
