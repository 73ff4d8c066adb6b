"""Attacks with a key that may read and write, or with none, on nodes that run as processes (T11, T12).

Each one's cheap sister plays it in one process.  Stays out: attacks that take memory (`test_greedy_clients`).
"""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import pytest
import tidemark
from tidemark_cli.admin import Admin
from tidemark_core.base.refusals import Reason
from tidemark_core.replication.messages import Appended, Fate
from tidemark_core.replication.producers import PRODUCERS_MAX
from tidemark_node.metrics import CONNECTIONS_MAX as METRICS_CONNECTIONS_MAX
from tidemark_operator.certificates.rotation import Policy
from tidemark_wire import channel
from tidemark_wire.identity import Kind
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.tls import FileCredentials, TlsSettings
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from tests.crowd import crowd
from tests.waiting import until

from . import http2
from .cluster import Cluster
from .test_greedy_clients import undisturbed
from .wire import AppendStream, batch

CROWD = 1_000
KUBELET = "127.0.0.2"
FILES, FILES_OF_STORE = 900, 256
CALLS_MAX = 40
RECEIVED_AT_ONCE = 4
HEADERS_EACH, CONNECTIONS = 100, 4
IDS_AT_ONCE = 500


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    """Nodes that may open few files."""
    cluster = start_cluster(3, "--calls-max", str(CALLS_MAX), tls=True, silence_ms=None)
    few = ("sh", "-c", f'ulimit -Sn 300 && ulimit -Hn {FILES} && exec "$@"', "few")
    asyncio.run(cluster.restart_with(prefix=few))
    return cluster


@pytest.fixture(scope="module")
def stolen(cluster: Cluster) -> TlsSettings:
    return key_of(cluster, "eve")


def key_of(cluster: Cluster, name: str) -> TlsSettings:
    return TlsSettings.of_directory(cluster.runtime.certificates().issue(Policy(), Kind.CLIENT, name))


async def test_t11_a_hostile_batch_ends_tidemark_read_which_names_its_offsets(
    cluster: Cluster, client: tidemark.Client, stolen: TlsSettings
) -> None:
    group = await cluster.create_group()
    await client.group(group)
    async with client.appender(group) as appender:
        await appender.append(b"before", key=b"k")
        leader = await cluster.leader(group)
        eve = AppendStream(cluster.address(leader), group, credentials=FileCredentials(stolen), server_name=leader)
        await eve.send(batch(0, b"not arrow at all"))
        stored = (await eve.answer()).value
        await eve.close()
        assert isinstance(stored, Appended)
        await appender.append(b"behind", key=b"k")
    read = await cluster.cli("read", group)
    assert (1, "before\n") == (read.code, read.out), read
    assert f"UNDECODABLE_BATCH: offsets {stored.base} to {stored.base} of shard 0" in read.err, read.err
    skipped = await cluster.cli("read", group, "--skip-undecodable")
    assert (0, "before\nbehind\n") == (skipped.code, skipped.out)
    assert "passed over 1 record" in skipped.err


async def test_t12_idle_connections_take_no_place_of_callers_and_no_descriptor_of_the_store(
    cluster: Cluster, client: tidemark.Client
) -> None:
    assert CROWD > FILES
    group = await cluster.create_group()
    leader = await cluster.leader(group)
    async with undisturbed(cluster, client, group):
        with crowd(cluster.address(leader), CROWD):
            async with client.appender(group, timeout_s=60) as appender:
                for number in range(100):
                    await appender.append(b"%d" % number, key=b"k")
            used = len(list(Path(f"/proc/{cluster.pid(leader)}/fd").iterdir()))
            assert used <= FILES - FILES_OF_STORE, "the store finds descriptors when it needs them"
    assert "Too many open files" not in Path(cluster.node(leader).log).read_text()


async def test_t12_a_crowd_on_the_port_of_metrics_keeps_no_probe_out(
    cluster: Cluster, client: tidemark.Client
) -> None:
    assert CROWD > METRICS_CONNECTIONS_MAX
    group = await cluster.create_group()
    leader = await cluster.leader(group)
    address = cluster.node(leader).metrics_address

    def probe(path: str) -> int:
        """Ask from an address of our own: of the crowd's own address the oldest connections go, whatever they ask."""
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30, source_address=(KUBELET, 0))
        with closing(connection):
            connection.request("GET", f"/{path}")
            return connection.getresponse().status

    async with undisturbed(cluster, client, group):
        with crowd(address, CROWD):
            for path in ("livez", "readyz", "metrics"):
                assert 200 == await asyncio.to_thread(probe, path)


async def test_l25b_ids_without_end_make_no_shard_forget_the_producers_of_others(
    cluster: Cluster, client: tidemark.Client, stolen: TlsSettings
) -> None:
    group = await cluster.create_group()
    async with client.appender(group) as appender:
        told = await appender.append(b"before the crowd", key=b"k")
    leader = await cluster.leader(group)
    eve = AppendStream(cluster.address(leader), group, credentials=FileCredentials(stolen), server_name=leader)
    prefix = await prefix_of(cluster, leader, stolen)

    async def answered(count: int) -> None:
        for _ in range(count):
            value = (await eve.answer()).value
            assert isinstance(value, Appended), value

    waiting = 0
    for first in range(0, PRODUCERS_MAX + IDS_AT_ONCE, IDS_AT_ONCE):
        numbers = range(first, first + IDS_AT_ONCE)
        await eve.send(*(batch(0, b"-", producer=prefix + number.to_bytes(8)) for number in numbers))
        await answered(waiting)
        waiting = IDS_AT_ONCE
    await answered(waiting)
    repeated = await eve.append(batch(0, b"-", producer=prefix + bytes(8)))
    assert isinstance(repeated, Appended) and repeated.base > PRODUCERS_MAX, "its own oldest one is forgotten"
    await eve.close()
    outcome = await client.outcome(group, 0, told.producer, told.sequence)
    assert (Fate.CONFIRMED, told.offset) == (outcome.fate, outcome.base)


async def prefix_of(cluster: Cluster, node: str, key: TlsSettings) -> bytes:
    async with channel.open_channel(cluster.address(node), FileCredentials(key), server_name=node) as opened:
        answer = await node_pb2_grpc.TidemarkStub(opened).GetShardMap(
            node_pb2.GetShardMapRequest(), metadata=channel.hello_metadata())
    return bytes(answer.producer_prefix)


async def test_an_admin_that_the_lists_no_longer_name_moves_nothing_on_its_open_connection(cluster: Cluster) -> None:
    group = await cluster.create_group(access={"readers": ["*"], "writers": ["*"], "admins": ["anna"]})
    async with Admin(cluster.runtime.admin_address, key_of(cluster, "anna")) as anna:

        async def transfer() -> Reason | None:
            """Return why the leadership does not move, None where it moved."""
            leader = await cluster.leader(group)
            follower = next(name for name in await cluster.members(group) if name != leader)
            try:
                async for _ in anna.change("TRANSFER", group, 0, to_node=follower):
                    pass
            except grpc.aio.AioRpcError as error:
                hinted = refusal_from_rpc_error(error)
                assert hinted is not None, error
                return hinted.refused.reason
            return None

        async def moved() -> bool:
            return await transfer() is None

        async def denied() -> bool:
            return await transfer() is Reason.PERMISSION_DENIED

        await until(moved, "anna moves the leadership")
        (manifest,) = [each for each in await cluster.objects("LogGroup") if each["metadata"]["name"] == group]
        manifest["spec"]["access"]["admins"] = []
        manifest["metadata"] = {"name": group}
        await cluster.apply({key: manifest[key] for key in ("apiVersion", "kind", "metadata", "spec")})
        await until(denied, "anna may no longer")
        before = (await cluster.shard(group))["epoch"]
        for _ in range(5):
            assert await denied()
        assert before == (await cluster.shard(group))["epoch"]


async def test_t12_calls_of_which_only_the_headers_come_are_ended_and_others_find_a_place(
    cluster: Cluster, client: tidemark.Client, stolen: TlsSettings
) -> None:
    group = await cluster.create_group()
    leader = await cluster.leader(group)
    async with undisturbed(cluster, client, group):
        with ExitStack() as stack:
            bare = [
                stack.enter_context(http2.connected(cluster.address(leader), stolen, leader))
                for _ in range(CONNECTIONS)]
            for connection in bare:
                for _ in range(HEADERS_EACH):
                    connection.call("/tidemark.v1.Tidemark/Subscriptions")

            def listen() -> int:
                for connection in bare:
                    connection.listen()
                return sum(len(connection.ended) for connection in bare)

            async def refused() -> bool:
                return await asyncio.to_thread(listen) >= CONNECTIONS * HEADERS_EACH - CALLS_MAX // 2

            await until(refused, "the calls above the share are refused")
            assert () == (await client.subscriptions(group))[0].subscriptions, "another caller finds a place"

            async def ended() -> bool:
                return await asyncio.to_thread(listen) >= CONNECTIONS * HEADERS_EACH - RECEIVED_AT_ONCE

            await until(ended, "no call waits behind others for a request that does not come")
