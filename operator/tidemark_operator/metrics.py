"""What the operator counts of etcd, of nodes and of elections, wherever it runs; served on Kubernetes.

Stays out: deciding anything, the endpoint and metrics of the Kubernetes room (`kube.health`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import TypeVar

import grpc.aio
from prometheus_client import Counter, Histogram
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.records import ShardRecord, Status

Answer = TypeVar("Answer")

STORE_REQUESTS = Counter("tidemark_operator_store_requests", "Requests to etcd.", ["method", "code"])
STORE_CONFLICTS = Counter(
    "tidemark_operator_store_conflicts", "Transactions on etcd of which a condition did not hold: somebody was faster.")
NODE_REQUESTS = Counter("tidemark_operator_agent_requests", "Requests to nodes, probes too.", ["rpc", "code"])
ELECTIONS = Counter(
    "tidemark_operator_elections", "Elections that ended: Elected, or Superseded by one of a higher epoch.", ["result"])
LEADER_BALANCE = Counter(
    "tidemark_operator_leader_balance_transfers",
    "Leaderships that the operator handed over to make them even: Moved, or Refused by the leader.", ["result"])
FLOOR_ROUNDS = Counter(
    "tidemark_operator_floor_rounds",
    "Rounds of the floors of ranges that ended: Raised, or GivenUp because a node was away or did not answer.",
    ["result"])
STRANGERS_REFUSED = Counter(
    "tidemark_operator_strangers_refused",
    "Answers about a shard left without effect: the node that sent them is no member of it.")
ELECTION_SECONDS = Histogram(
    "tidemark_operator_election_duration_seconds", "From when an election stands in etcd until its leader does.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60))


async def counted(counter: Counter, what: str, call: Awaitable[Answer]) -> Answer:
    """Await a call, and count it by its code.  Raises what it raises."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        counter.labels(what, error.code().name).inc()
        raise
    counter.labels(what, "OK").inc()
    return answer


class ElectionWatch:
    """Told of each record of a shard that takes the place of another; counts the elections that end."""

    def __init__(self) -> None:
        self._began: dict[ShardId, float] = {}

    def see(self, shard: ShardId, before: ShardRecord | None, after: ShardRecord | None) -> None:
        if after is None:
            self._began.pop(shard, None)
        elif after.status is Status.ELECTION:
            if before is not None and before.status is Status.ELECTION and after.epoch > before.epoch:
                ELECTIONS.labels("Superseded").inc()
            self._began.setdefault(shard, time.monotonic())
        elif (began := self._began.pop(shard, None)) is not None:
            ELECTIONS.labels("Elected").inc()
            ELECTION_SECONDS.observe(time.monotonic() - began)
