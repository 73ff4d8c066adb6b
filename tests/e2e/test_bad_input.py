"""Bad input to a running cluster: a typed error that names the field or the fact, and nothing is appended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest
import tidemark
from google_crc32c import value as crc32c
from tidemark import Client
from tidemark.errors import InvalidArgument, RecordTooLarge, RequestRefused, UnknownGroup, UnknownShard
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Appended
from tidemark_wire import channel
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.v1 import node_pb2

from .cluster import Cluster
from .wire import append_stream, batch
from .workload import read_all

RECORD_BYTES_MAX = 1 << 20


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(3)


async def log_end(cluster: Cluster, group: str) -> str:
    """Return where a group's log ends on its leader."""
    return str((await cluster.replica(await cluster.leader(group), group))["head"])


async def test_library_names_the_field_and_sends_nothing(cluster: Cluster, client: Client):
    group = await cluster.create_group(record_bytes_max=RECORD_BYTES_MAX)
    await client.group(group)
    before = await log_end(cluster, group)
    async with client.appender(group) as appender:
        with pytest.raises(RecordTooLarge, match=str(RECORD_BYTES_MAX)) as caught:
            await appender.append(bytes(RECORD_BYTES_MAX + 1))
        assert (caught.value.field, caught.value.reason) == ("value", "RECORD_TOO_LARGE")
        with pytest.raises(RecordTooLarge, match=r"records\[1\]"):
            await appender.append_batch([b"fine", bytes(RECORD_BYTES_MAX + 1), b"fine"])
        for wrong, field in [({"value": "text"}, "value"), ({"value": b"v", "key": "text"}, "key")]:
            with pytest.raises(InvalidArgument) as bad:
                await appender.append(**wrong)  # type: ignore[arg-type]
            assert bad.value.field == field and bad.value.advice
    with pytest.raises(UnknownGroup, match="nowhere"):
        await client.group("nowhere")
    with pytest.raises(UnknownGroup, match="nowhere"):
        client.appender("nowhere")
    with pytest.raises(UnknownShard, match="9"):
        client.read(group, shards=[0, 9])
    assert await log_end(cluster, group) == before
    assert await read_all(client, group) == []


async def test_node_names_the_field_and_appends_nothing(cluster: Cluster, client: Client):
    """What the library would not send: the node checks it all the same."""
    group = await cluster.create_group(record_bytes_max=RECORD_BYTES_MAX)
    leader = await cluster.leader(group)
    before = await log_end(cluster, group)
    good = batch(0)
    async with append_stream(cluster.address(leader), group) as stream:
        for wrong, reason, fact in [
            (batch(0, bytes(9 << 20)), Reason.BATCH_TOO_LARGE, "max_batch_bytes"),
            (batch(0, bytes(2 * RECORD_BYTES_MAX + 1)), Reason.BATCH_TOO_LARGE, "max_batch_bytes"),
            (good._replace(payload_crc=crc32c(b"something else")), Reason.INVALID_BATCH, "crc"),
            (good._replace(count=0), Reason.INVALID_BATCH, "count"),
            (good._replace(producer=bytes(16)), Reason.INVALID_BATCH, "producer"),
            (good._replace(first_timestamp_us=5, last_timestamp_us=4), Reason.INVALID_BATCH, "timestamp"),
            (batch(5), Reason.PRODUCER_UNKNOWN, "expected 0"),
        ]:
            answer = await stream.append(wrong)
            assert isinstance(answer, Refused), answer
            assert answer.reason == reason and fact in answer.message, answer
        assert await log_end(cluster, group) == before
        assert isinstance(await stream.append(good), Appended), "and the stream goes on"
        other = await stream.append(good._replace(count=2, producer=good.producer))
        assert isinstance(other, Refused) and other.reason == Reason.INVALID_BATCH, "another batch under a used number"
    for name, shard, reason in [("nowhere", 0, Reason.UNKNOWN_GROUP), (group, 9, Reason.UNKNOWN_SHARD)]:
        async with append_stream(cluster.address(leader), name, shard) as stream:
            answer = await stream.append(good)
        expected = {reason, Reason.NOT_LEADER} if reason is Reason.UNKNOWN_SHARD else {reason}
        assert isinstance(answer, Refused) and answer.reason in expected, answer
        assert str(shard) in answer.message if shard else name in answer.message
    payloads = [entry.entry.payload async for entry in client.read(group).batches()]
    assert payloads == [good.payload]


@pytest.mark.parametrize(
    "fields, code, fact",
    [
        ({"group": "nowhere"}, grpc.StatusCode.NOT_FOUND, "nowhere"),
        ({"shard": 9}, grpc.StatusCode.NOT_FOUND, "shard 9"),
        ({"from": -5}, grpc.StatusCode.INVALID_ARGUMENT, "-5"),
        ({"until": -7}, grpc.StatusCode.INVALID_ARGUMENT, "-7"),
    ],
    ids=["group", "shard", "from", "until"],
)
async def test_read_names_the_field(cluster: Cluster, client: Client, fields: dict, code: grpc.StatusCode, fact: str):
    group = await cluster.create_group()
    request = node_pb2.ReadRequest(**{"group": group, "shard": 0, "until": -1, **fields})
    async with channel.open_channel(cluster.address(await cluster.leader(group))) as opened:
        method = opened.unary_stream(channel.READ, request_serializer=node_pb2.ReadRequest.SerializeToString)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request, metadata=channel.hello_metadata()).read()
    assert caught.value.code() == code
    refused = refusal_from_rpc_error(caught.value)
    assert refused is not None and fact in refused.refused.message


async def test_commands_exit_with_a_code_and_say_what_to_do(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    before = await log_end(cluster, group)
    nowhere, shard, line = await asyncio.gather(
        cluster.cli("append", "nowhere", "-", "--json", stdin=b"a line\n"),
        cluster.cli("read", group, "--shard", "9", "--json"),
        cluster.cli("append", group, "-", "--key-field", "id", "--json", stdin=b'{"other": 1}\n'),
    )
    assert nowhere.code == 1 and nowhere.document["error"] == "UNKNOWN_GROUP" and "nowhere" in nowhere.err
    assert shard.code == 1 and shard.document["error"] == "UNKNOWN_SHARD" and "9" in shard.err
    assert line.code == 1 and "line 1" in line.err and "id" in line.err
    for ran in (nowhere, shard, line):
        assert ran.document["advice"] and "Traceback" not in ran.err
    assert await log_end(cluster, group) == before


async def test_refusal_of_a_batch_harms_no_other(cluster: Cluster, client: Client):
    """A batch that only the node can refuse fails alone; what was appended around it is there, in order."""
    group = await cluster.create_group()
    await client.group(group)
    async with client.appender(group, batch_records=1) as appender:
        kept = [await appender.append(b"k:%d:" % number, key=b"k") for number in range(3)]
        # As if the group's limit had been lowered since this client read the shard map.
        checks = appender._dispatcher.checks
        checks.record_bytes_max = checks.payload_bytes_max = 64 << 20
        with pytest.raises(RequestRefused) as caught:
            await appender.append(bytes(7 << 20), key=b"k")
        assert caught.value.refused.reason == Reason.BATCH_TOO_LARGE
        kept += [await appender.append(b"k:%d:" % number, key=b"k") for number in range(3, 6)]
    records = await read_all(client, group)
    assert [record.value for record in records] == [b"k:%d:" % number for number in range(6)]
    assert [record.offset for record in records] == [place.offset for place in kept]


async def test_connecting_to_nobody_says_where(cluster: Cluster):
    with pytest.raises(tidemark.errors.Unavailable, match=r"127\.0\.0\.1:1"):
        await tidemark.connect("127.0.0.1:1", timeout_s=0.5)
    with pytest.raises(InvalidArgument, match="not host:port"):
        await tidemark.connect("nonsense")
