"""Recovery: asks every node what it persisted, and writes the plan that follows into etcd.

Nodes are asked twice: the first answers say which epochs to promise, and the plan is made of the answers of nodes that
promised (N10).
The key prefix must be empty, but for what an operator writes by itself, unless records that are there may be merged
with.  A marker is written first and removed last: as long as it stands no operator acts, and a recovery that was cut
short is taken up again by the next one.  The marker is only written where no operator is active, in one transaction
with that condition.
Stays out: the plan (`recovery_plan`), showing it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc.aio
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.replication.recovery import ReplicaReport
from tidemark_wire.channel import hello_metadata, open_channel
from tidemark_wire.recovery import REPLICAS_MAX, report_from_proto
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.tls import Credentials
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from .condition_memory import timestamp
from .etcd import Conflict, EtcdStore, Saved, Snapshot, StoreUnavailable, Write
from .metadata import Keys
from .recovery_plan import Asked, NodeAnswer, RecoveryPlan, SilentNode, make_plan, unpromised
from .resources.kinds import IN_CLUSTERS, KINDS

PAGE_WRITES = 100
PAGES_MAX = 10_000
ATTEMPTS_MAX = 5
ROUNDS_MAX = 5
RETRY_S = 0.3
OWN_AREAS = frozenset({"shards", "ranges", *(KINDS[kind].area for kind in IN_CLUSTERS)})
"""What makes a prefix more than an operator's own beginnings."""


class RecoveryRefused(Exception):
    """Nothing was written; the message says why, `advice` what to do."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Address:
    """Where to ask, and the pool that its node belongs to."""

    address: str
    pool: str = "default"


# --- asking -----------------------------------------------------------------------------------------------


async def ask_nodes(
    addresses: Sequence[Address], tls: Credentials | None, timeout_s: float,
    progress: Callable[[str], None] = lambda line: None, floors: Mapping[ShardId, int] | None = None,
) -> tuple[list[NodeAnswer], list[SilentNode]]:
    """Ask all nodes at once; one that gives no whole answer within the time is silent.

    With `floors` each node promises them first; one that does not promise is silent (N10).
    """
    found = await asyncio.gather(*(_ask(address, tls, timeout_s, progress, floors or {}) for address in addresses))
    return [one for one in found if isinstance(one, NodeAnswer)], [one for one in found if isinstance(one, SilentNode)]


async def _ask(
    where: Address, tls: Credentials | None, timeout_s: float, progress: Callable[[str], None],
    floors: Mapping[ShardId, int],
) -> NodeAnswer | SilentNode:
    deadline = time.monotonic() + timeout_s
    reason = "no answer in time"
    async with open_channel(where.address, tls) as channel:
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                answer = await _ask_once(channel, where, left_s, floors)
            except grpc.aio.AioRpcError as error:
                hinted = refusal_from_rpc_error(error)
                reason = hinted.refused.message if hinted else f"{error.code().name}: {error.details()}"
                if floors and error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    reason = "its release cannot promise to refuse older operators: start it with this release"
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION):
                    break  # it will say the same again
                await asyncio.sleep(min(RETRY_S, max(0.0, deadline - time.monotonic())))
            except RemoteViolation as error:
                reason = str(error)
                break
            else:
                progress(f"{answer.member.node} {'promised' if floors else 'answered'}: {len(answer.reports)} replicas")
                return answer
    progress(f"{where.address} is silent: {reason}")
    return SilentNode(where.address, reason)


async def _ask_once(
    channel: grpc.aio.Channel, where: Address, timeout_s: float, floors: Mapping[ShardId, int]
) -> NodeAnswer:
    stub = node_pb2_grpc.ControlStub(channel)
    seen = await stub.Describe(node_pb2.DescribeRequest(), timeout=timeout_s, metadata=hello_metadata())
    member = Member(seen.node, seen.incarnation)
    promised = await _promise(stub, member, timeout_s, floors)
    reports, remembered = await fetch_reports(stub, timeout_s)
    others = (report for report in reports if report.shard not in floors)
    return NodeAnswer(
        where.address, where.pool, member, seen.zone, seen.location, (*promised, *others), remembered, floors)


async def _promise(
    stub: node_pb2_grpc.ControlStub, member: Member, timeout_s: float, floors: Mapping[ShardId, int]
) -> list[ReplicaReport]:
    """Return what a node says of these shards once it promised their floors (N10)."""
    wanted, reports = list(floors.items()), []
    for start in range(0, len(wanted), REPLICAS_MAX):
        page = await stub.Promise(
            node_pb2.PromiseRequest(floors=[
                node_pb2.Floor(shard=shard, epoch=epoch) for shard, epoch in wanted[start : start + REPLICAS_MAX]]),
            timeout=timeout_s, metadata=hello_metadata())
        if Member(page.node, page.incarnation) != member:
            raise RemoteViolation(f"{member} became {page.node}/{page.incarnation} while it was asked")
        reports += [report_from_proto(member, replica) for replica in page.replicas]
    return reports


async def ask_promises(
    first: RecoveryPlan, addresses: Sequence[Address], tls: Credentials | None, timeout_s: float,
    plan_of: Callable[[list[NodeAnswer], list[SilentNode]], Awaitable[RecoveryPlan]],
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[list[NodeAnswer], list[SilentNode]]:
    """Ask all nodes for the promises that the plan needs; return their answers, of which another plan is made (N10).

    Nodes are asked again while the answers bring shards or epochs that were not known.  Raises RecoveryRefused when
    that does not end: an operator is at work.
    """
    floors = dict(first.floors)
    for _round in range(ROUNDS_MAX):
        answers, silent = await ask_nodes(addresses, tls, timeout_s, progress, floors)
        plan = await plan_of(answers, silent)
        missing = unpromised(plan, answers)
        if plan.problems or not missing:
            return answers, silent
        floors.update((shard, plan.floors[shard]) for shard in missing)
    raise RecoveryRefused(
        "nodes are in a higher epoch each time they are asked",
        "Stop every operator of this cluster, then run it again.")


async def fetch_reports(
    stub: node_pb2_grpc.ControlStub, timeout_s: float
) -> tuple[list[ReplicaReport], node_pb2.RememberedCluster]:
    """Return all replicas of a node, page by page.  Raises grpc.aio.AioRpcError, RemoteViolation."""
    reports: list[ReplicaReport] = []
    first = 0
    for _page in range(PAGES_MAX):
        page = await stub.Replicas(
            node_pb2.ReplicasRequest(**{"from": first, "replicas_max": REPLICAS_MAX}), timeout=timeout_s,
            metadata=hello_metadata())
        member = Member(page.node, page.incarnation)
        reports += (report_from_proto(member, replica) for replica in page.replicas)
        if not page.more:
            return reports, page.cluster
        if not page.replicas or page.replicas[-1].shard < first:
            raise RemoteViolation(f"{member} gives pages of replicas that do not go on")
        first = page.replicas[-1].shard + 1
    raise RemoteViolation(f"more than {PAGES_MAX} pages of replicas")


# --- writing ----------------------------------------------------------------------------------------------


async def look(
    store: EtcdStore, keys: Keys, answers: Sequence[NodeAnswer], silent: Sequence[SilentNode], asked: Asked, *,
    merge: bool,
) -> tuple[RecoveryPlan, Snapshot]:
    """Return the plan against what etcd holds now.  Raises RecoveryRefused, StoreUnavailable."""
    snapshot = await store.load(keys.everything)
    check_prefix(keys, snapshot, merge=merge)
    return make_plan(answers, silent, snapshot, keys, asked), snapshot


def check_prefix(keys: Keys, snapshot: Snapshot, *, merge: bool) -> None:
    """Refuse a prefix that holds what this recovery did not begin, and one that an operator works on."""
    if keys.operator in snapshot.items:
        raise RecoveryRefused(
            f"the operator {snapshot.items[keys.operator].value.decode()} is active on {keys.prefix}",
            "Stop every operator of this cluster first; one that was killed is forgotten a few seconds later.")
    if merge or keys.recovery in snapshot.items:
        return
    areas = {key.removeprefix(keys.everything).partition("/")[0] for key in snapshot.items}
    if found := sorted(areas & OWN_AREAS):
        raise RecoveryRefused(
            f"{keys.prefix} is not empty: it holds {', '.join(found)}",
            "Give --merge where this is a backup that was restored; what it holds is kept unless nodes know better.")


async def carry_out(
    store: EtcdStore, keys: Keys, answers: Sequence[NodeAnswer], silent: Sequence[SilentNode], asked: Asked, *,
    merge: bool, progress: Callable[[int, int], None] = lambda done, of: None,
) -> RecoveryPlan:
    """Write the plan.  Raises RecoveryRefused where it has problems or others write too, StoreUnavailable."""
    first, snapshot = await look(store, keys, answers, silent, asked, merge=merge)
    if first.problems:
        raise RecoveryRefused(first.problems[0], "See the plan with --dry-run; nothing was written.")
    if unpromised(first, answers):
        raise RecoveryRefused("nodes have not promised to refuse older operators", "Run it again; nothing was written.")
    await _mark(store, keys, snapshot)
    for _attempt in range(ATTEMPTS_MAX):
        # Under the marker nobody else writes; a page of unknown outcome is found in the next look.
        plan, snapshot = await look(store, keys, answers, silent, asked, merge=True)
        if plan.problems:
            raise RecoveryRefused(plan.problems[0], "Run it again; the marker keeps operators away meanwhile.")
        if await _write(store, plan.writes, progress):
            marker = snapshot.items[keys.recovery]
            ended = await store.transact([Write(keys.recovery, None, marker.revision)])
            if isinstance(ended, Saved) or await store.get(keys.recovery) is None:
                return first
    raise StoreUnavailable(f"{keys.prefix} is contended, or etcd loses answers: run it again, it goes on")


async def _mark(store: EtcdStore, keys: Keys, snapshot: Snapshot) -> None:
    if keys.recovery in snapshot.items:
        return
    marker = json.dumps({"started": timestamp()}).encode()
    # Deleting what is not there is a condition: no operator became active since we looked.
    outcome = await store.transact([Write(keys.operator, None, 0), Write(keys.recovery, marker, 0)])
    if isinstance(outcome, Conflict):
        raise RecoveryRefused(
            f"an operator became active on {keys.prefix}, or another recovery began", "Stop it, then run this again.")
    if not isinstance(outcome, Saved) and await store.get(keys.recovery) is None:
        raise StoreUnavailable(outcome.message)


async def _write(store: EtcdStore, writes: Sequence[Write], progress: Callable[[int, int], None]) -> bool:
    for start in range(0, len(writes), PAGE_WRITES):
        page = writes[start : start + PAGE_WRITES]
        progress(start, len(writes))
        if not isinstance(await store.transact(page), Saved):
            return False
    progress(len(writes), len(writes))
    return True
