"""Appends that expect an offset: what callers hear, and which appends may not (rule L29)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import tidemark
from fake_cluster import FakeCluster, FakeShard
from tidemark import errors
from tidemark.batch import ReadBatch
from tidemark_core.base.entry import Kind
from tidemark_core.base.refusals import Reason
from tidemark_wire.wire_version import VERSION_OF_EXPECT

from tests.waiting import until


@pytest.fixture
async def one(connect_to) -> tuple[FakeCluster, tidemark.Client, FakeShard]:
    """Three nodes and one shard."""
    cluster, client = await connect_to(nodes=3, shards=1)
    return cluster, client, cluster.groups["orders"][0]


def batches_of(shard: FakeShard) -> list[list[bytes]]:
    return [
        [record.value for record in ReadBatch(shard.index, entry, entry.base, entry.last).records()]
        for entry in shard.entries if entry.kind is Kind.DATA]


async def test_l29_a_record_is_appended_where_none_came_first_and_refused_where_one_did(one):
    _, client, shard = one
    async with client.appender("orders") as appender:
        first = await appender.append(b"first", expect=0)
        with pytest.raises(errors.RecordCameFirst, match=f"a record lies at offset {first.offset}") as caught:
            await appender.append(b"second", key=b"k", expect=first.offset)
        assert (caught.value.end, caught.value.reason) == (first.offset + 1, "RECORD_CAME_FIRST")
        assert "read the records that came first" in caught.value.advice
        again = await appender.append(b"second", key=b"k", expect=caught.value.end)
        assert (again.producer, again.sequence) == (first.producer, first.sequence + 1), "the sequence was free"
    assert batches_of(shard) == [[b"first"], [b"second"]]


async def test_l29_an_append_that_expects_an_offset_is_a_batch_of_its_own(one):
    _, client, shard = one
    async with client.appender("orders", linger_ms=50) as appender:
        await appender.append(b"0", key=b"k")
        end = shard.entries[-1].last + 1
        calls = [
            appender.append_nowait(b"1", key=b"k", expect=end), appender.append_nowait(b"2", key=b"k"),
            appender.append_nowait(b"3", key=b"k", expect=end)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in answers] == [tidemark.Appended, tidemark.Appended, errors.RecordCameFirst]
    assert batches_of(shard) == [[b"0"], [b"1"], [b"2"]]


async def test_the_example_of_the_page_spends_a_balance_once(one):
    _, client, shard = one
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    [block] = [part.partition("```")[0] for part in page.split("```python\n")[1:] if "async def withdraw(" in part]
    names: dict[str, Any] = {"tidemark": tidemark}
    exec(compile(block, "docs/client.md", "exec"), names)
    async with client.appender("orders") as appender:
        await appender.append(b"45")
    answers = await asyncio.gather(
        *(names["withdraw"](client, "orders", 10) for _ in range(6)), return_exceptions=True)
    left = sorted((each for each in answers if isinstance(each, int)), reverse=True)
    assert left == [35, 25, 15, 5], answers
    assert [str(each) for each in answers if not isinstance(each, int)] == ["5 is left, 10 is asked for"] * 2
    assert batches_of(shard) == [[b"45"], *[[b"-10"]] * 4]


@pytest.mark.parametrize("expect", [-1, 1 << 63, True, 1.5, "7"])
async def test_an_offset_that_is_none_is_refused_and_nothing_is_sent(one, expect):
    _, client, shard = one
    async with client.appender("orders") as appender:
        with pytest.raises(errors.InvalidArgument, match=r"expect: is .*must be an offset") as caught:
            await appender.append(b"x", expect=expect)
        assert caught.value.field == "expect" and appender.buffered_bytes == 0
    assert shard.sent == []


async def test_a_record_without_a_key_has_no_offset_to_expect_among_several_shards(cluster, client):
    async with client.appender("orders") as appender:
        with pytest.raises(errors.InvalidArgument, match="expect: needs a key: 'orders' has 4 shards"):
            await appender.append(b"x", expect=0)
        assert (await appender.append(b"x", key=b"k", expect=0)).offset >= 0


async def test_a_leader_of_the_release_before_is_asked_nothing_that_it_cannot_read(one):
    cluster, client, shard = one
    for node in cluster.nodes.values():
        node.wire_version = VERSION_OF_EXPECT - 1
    cluster.push()
    await until(lambda: client.routing.map.version == cluster.version)
    async with client.appender("orders") as appender:
        with pytest.raises(errors.RequestRefused, match="leads shard 0 and is of a release before `expect`") as caught:
            await appender.append(b"x", expect=0)
        assert caught.value.refused.reason is Reason.NEEDS_UPGRADE and shard.sent == []
        await appender.append(b"x")
    assert batches_of(shard) == [[b"x"]]
