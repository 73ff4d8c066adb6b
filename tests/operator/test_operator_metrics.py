"""What the operator counts: requests by what came of them, conflicts, and elections with how long they took."""

from __future__ import annotations

import time

import grpc
import grpc.aio
import pytest
from operator_views import record
from prometheus_client import REGISTRY, Counter
from tidemark_core.base.ids import shard_id
from tidemark_core.replication.records import Status
from tidemark_operator.etcd import Conflict, EtcdStore
from tidemark_operator.metrics import NODE_REQUESTS, ElectionWatch, counted

from tests.waiting import wait_until

STORE_REQUESTS = "tidemark_operator_store_requests_total"


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_requests_are_counted_by_their_code() -> None:
    counter = Counter("tidemark_test_calls", "For this test.", ["rpc", "code"], registry=None)

    async def answers() -> int:
        return 7

    async def fails() -> int:
        raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata())

    assert await counted(counter, "Check", answers()) == 7
    with pytest.raises(grpc.aio.AioRpcError):
        await counted(counter, "Check", fails())
    found = {tuple(sample.labels.values()): sample.value for sample in next(iter(counter.collect())).samples
             if sample.name.endswith("_total")}
    assert found == {("Check", "OK"): 1, ("Check", "DEADLINE_EXCEEDED"): 1}
    assert NODE_REQUESTS._labelnames == ("rpc", "code")


async def test_requests_to_etcd_and_conflicts_are_counted(store: EtcdStore) -> None:
    await store.put("/a", b"1", expected=0)
    before = value(STORE_REQUESTS, method="Txn", code="OK"), value("tidemark_operator_store_conflicts_total")
    reads = value(STORE_REQUESTS, method="Range", code="OK")
    assert await store.put("/a", b"2", expected=0) == Conflict()
    assert await store.get("/a") is not None
    assert (value(STORE_REQUESTS, method="Txn", code="OK"), value("tidemark_operator_store_conflicts_total")) == (
        before[0] + 1, before[1] + 1)
    assert value(STORE_REQUESTS, method="Range", code="OK") == reads + 1


async def test_elections_are_counted_when_they_end() -> None:
    def told() -> tuple[float, ...]:
        name = "tidemark_operator_election"
        return (value(f"{name}s_total", result="Elected"), value(f"{name}s_total", result="Superseded"),
                value(f"{name}_duration_seconds_count"), value(f"{name}_duration_seconds_sum"))

    watch, one, other = ElectionWatch(), shard_id(1, 0), shard_id(1, 1)
    names, before = ("n1", "n2", "n3"), told()
    begun = record(*names, epoch=2, status=Status.ELECTION)
    again = record(*names, epoch=3, status=Status.ELECTION)
    led = record(*names, leader="n1", epoch=3)
    watch.see(one, None, begun)
    begun_at = time.monotonic()
    wait_until(lambda: time.monotonic() - begun_at >= 0.01)
    watch.see(one, begun, again)
    watch.see(one, again, led)
    watch.see(one, led, record(*names, leader="n1", epoch=3, status=Status.RECONFIGURATION))
    watch.see(other, None, begun)
    watch.see(other, begun, None)  # let go of
    watch.see(other, None, led)
    after = told()
    assert [now - then for now, then in zip(after[:3], before[:3], strict=True)] == [1, 1, 1]
    assert 0.01 <= after[3] - before[3] < 10
