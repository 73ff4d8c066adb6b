"""The Admin service: what `tidemark` speaks to; manifests in, objects out, changes of one shard.

Stays out: everything behind the calls; refusals go out through `tidemark_wire.status`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import grpc.aio
from tidemark_core.base.ids import shard_id
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.records import ChangeDone, ChangeProgress
from tidemark_wire.budgets import Budget
from tidemark_wire.status import to_rpc_error
from tidemark_wire.tasks import background
from tidemark_wire.v1 import admin_pb2, admin_pb2_grpc
from tidemark_wire.version import VERSION

from .access import AdminAccess, Manifest
from .model import Group
from .moves import run_move
from .objects import UNKNOWN
from .placement import PlanRefusal
from .plan import Move, MoveKind, choose_member, choose_victim
from .resources import KINDS
from .service import OperatorService

WATCHERS_MAX = 128
WATCH_PACE_S = 0.05
CHANGES_MAX = 512
"""Of all callers; one caller has at most half of what others leave (T12)."""

PROGRESS_LOOK_S = 0.25
BUSY_PATIENCE_S, BUSY_PAUSE_S = 5.0, 0.05
BUSY_REASONS = frozenset({Reason.RECONFIGURING, Reason.NO_LEADER, Reason.TRANSFERRING})

_KINDS = {
    "SWAP": MoveKind.SWAP, "EXPAND": MoveKind.EXPAND, "CONTRACT": MoveKind.CONTRACT,
    "TRANSFER": MoveKind.TRANSFER, "RECOVER": MoveKind.RECOVER,
}

class AdminServicer(admin_pb2_grpc.AdminServicer):
    def __init__(self, service: OperatorService) -> None:
        self._service = service
        self._access = AdminAccess(service.cluster, service.access_lists, tls=service.tls is not None)
        self._watches = Budget("watches", WATCHERS_MAX)
        self._changes = Budget("changes under way", CHANGES_MAX)

    async def Apply(self, request: admin_pb2.ApplyRequest, context: Any) -> admin_pb2.ApplyResponse:
        audit = await self._access.administer(context, "Admin.Apply")
        done = _behind(self._service) or await self._service.objects.apply(request.manifests, dry_run=request.dry_run)
        audit(str(done.reason) if isinstance(done, Refused) else "dry run" if request.dry_run else ", ".join(done))
        if isinstance(done, Refused):
            await _refuse(context, done)
        return admin_pb2.ApplyResponse(applied=done)

    async def Get(self, request: admin_pb2.GetRequest, context: Any) -> admin_pb2.GetResponse:
        shown = await self._access.look(context, "Admin.Get")
        return await self._get(request, context, shown)

    async def Watch(
        self, request: admin_pb2.GetRequest, context: Any
    ) -> AsyncIterator[admin_pb2.GetResponse]:
        shown = await self._access.look(context, "Admin.Watch")
        who = self._access.who(context)
        if not self._watches.take(who):
            await _refuse(context, self._watches.refusal(who))
        changed = self._service.add_watcher()
        try:
            last = None
            while True:
                changed.clear()
                began = time.monotonic()
                answer = await self._get(request, context, shown, may_be_missing=last is not None)
                cost_s = time.monotonic() - began
                if answer != last:
                    yield answer
                    last = answer
                # The progress of a running move pokes nobody: look at it from time to time.
                moving = request.kind == "Reconfiguration" and self._service.reconfigurer.active
                try:
                    await asyncio.wait_for(changed.wait(), PROGRESS_LOOK_S if moving else None)
                except TimeoutError:
                    continue
                # A burst of changes is one answer, and all watches together take at most a fifth of the time.
                await asyncio.sleep(max(WATCH_PACE_S, 4 * cost_s * self._watches.used))
        finally:
            self._watches.give_back(who)
            self._service.remove_watcher(changed)

    async def Delete(self, request: admin_pb2.DeleteRequest, context: Any) -> admin_pb2.DeleteResponse:
        audit = await self._access.administer(context, "Admin.Delete")
        audit(f"{request.kind}/{request.name}")
        if not self._service.mirror.loaded:
            await _refuse(context, _unread(self._service))
        refused = _behind(self._service) or await self._service.objects.delete(request.kind, request.name)
        if refused is not None:
            await _refuse(context, refused)
        return admin_pb2.DeleteResponse()

    async def Change(
        self, request: admin_pb2.ChangeRequest, context: Any
    ) -> AsyncIterator[admin_pb2.ChangeProgress]:
        """Run one change.  A caller that goes away does not stop it."""
        about = f"{request.operation} of shard {request.shard} of {request.group}"
        if request.abandon or request.operation == "RECOVER":
            # Acknowledged records are given up: an admin of the group may not decide that.
            audit = await self._access.administer(context, "Admin.Change")
            gives_up = ", accepting a loss" if request.operation == "RECOVER" else ", abandoning its copy"
            audit(f"{about} from {request.from_node}" + (gives_up if request.abandon else ""))
        else:
            await self._access.move(context, "Admin.Change", request.group, about)
        move = self._move(request)
        if isinstance(move, Refused):
            await _refuse(context, move)
        who = self._access.who(context)
        if not self._changes.take(who):
            await _refuse(context, self._changes.refusal(who))
        news: asyncio.Queue[ChangeProgress] = asyncio.Queue(maxsize=1_024)
        work = background(self._run(move, _into(news), transfer=request.transfer), "a change of one shard")
        work.add_done_callback(lambda _: self._changes.give_back(who))
        while not work.done() or not news.empty():
            waiting = asyncio.ensure_future(news.get())
            await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                progress = waiting.result()
                yield admin_pb2.ChangeProgress(
                    stage=progress.stage, received_bytes=progress.received_bytes,
                    total_bytes=progress.total_bytes)
            else:
                waiting.cancel()
        answer = work.result()
        if isinstance(answer, Refused):
            await _refuse(context, answer)
        assert isinstance(answer, ChangeDone)
        yield admin_pb2.ChangeProgress(
            stage="DONE", epoch=answer.epoch, ensemble=[member.node for member in answer.ensemble],
            leader=answer.leader.node if answer.leader else "")

    async def _run(
        self, move: Move, progress: Callable[[ChangeProgress], None], *, transfer: bool
    ) -> ChangeDone | Refused:
        """Run a move; a shard that is busy with an election or with clearing up is waited for a little."""
        deadline = time.monotonic() + BUSY_PATIENCE_S
        while True:
            answer = await run_move(
                self._service.driver, move, self._service.world, progress, transfer=transfer)
            busy = isinstance(answer, Refused) and answer.reason in BUSY_REASONS
            if not busy or time.monotonic() > deadline:
                return answer
            await asyncio.sleep(BUSY_PAUSE_S)

    async def Describe(
        self, request: admin_pb2.OperatorDescribeRequest, context: Any
    ) -> admin_pb2.OperatorDescription:
        await self._access.look(context, "Admin.Describe")
        service = self._service
        return admin_pb2.OperatorDescription(
            operator=service.operator, cluster=service.cluster, version=VERSION,
            metadata_reachable=service.store.reachable, etcd=",".join(service.store.endpoints),
            active=service.active, metadata_behind=service.behind,
            tls_fingerprint=service.tls.material.fingerprint if service.tls is not None else "")

    # --- parts ----------------------------------------------------------------------------------------------

    async def _get(
        self, request: admin_pb2.GetRequest, context: Any, shown: Callable[[Manifest], Manifest], *,
        may_be_missing: bool = False,
    ) -> admin_pb2.GetResponse:
        if not self._service.mirror.loaded:
            await _refuse(context, _unread(self._service))
        objects = self._service.show(request.kind, request.name)
        if objects is None:
            await _refuse(context, Refused(
                Reason.INVALID_SPEC,
                f"kind is {request.kind!r}, must be one of {', '.join(KINDS)}"))
        if request.name and not objects and not may_be_missing:
            reason = UNKNOWN.get(request.kind, Reason.INVALID_SPEC)
            await _refuse(context, Refused(reason, f"there is no {request.kind} {request.name!r}"))
        return admin_pb2.GetResponse(objects=[json.dumps(shown(item), sort_keys=True) for item in objects])

    def _move(self, request: admin_pb2.ChangeRequest) -> Move | Refused:
        """Turn a request into a move, or say which field is wrong."""
        service = self._service
        kind = _KINDS.get(request.operation)
        if kind is None:
            return Refused(
                Reason.INVALID_SPEC, f"operation is {request.operation!r}, must be one of {', '.join(_KINDS)}")
        if (behind := _behind(service)) is not None:
            return behind
        if not service.active:
            return Refused(
                Reason.WRONG_STATE,
                f"this operator stands by; {service.mirror.active_operator or 'nobody'} is active")
        if not service.store.reachable:
            return Refused(Reason.METADATA_UNAVAILABLE, service.store.last_error)
        group = service.groups().get(request.group)
        if group is None:
            return Refused(Reason.UNKNOWN_GROUP, f"there is no log group {request.group!r}")
        if request.shard >= group.shards:
            return Refused(
                Reason.UNKNOWN_SHARD, f"log group {group.name} has {group.shards} shards, not {request.shard}")
        return self._complete(request, kind, group)

    def _complete(self, request: admin_pb2.ChangeRequest, kind: MoveKind, group: Group) -> Move | Refused:
        """Check the named nodes, and choose those that the request leaves open."""
        world = self._service.world()
        shard = world.shards.get(shard_id(group.group_id, request.shard))
        if shard is None:
            return Refused(Reason.NO_LEADER, f"log group {group.name} is still being created")
        from_node, to_node = request.from_node or None, request.to_node or None
        if kind is MoveKind.SWAP and not from_node:
            return Refused(Reason.INVALID_SPEC, "from_node: a swap names the node that leaves")
        if kind is MoveKind.TRANSFER and not to_node:
            return Refused(Reason.INVALID_SPEC, "to_node: a transfer names the node that is to lead")
        if kind is MoveKind.RECOVER:
            if not from_node:
                return Refused(Reason.INVALID_SPEC, "from_node: a recovery names the node whose copy becomes the log")
            from_node, to_node = None, from_node
        if kind in (MoveKind.SWAP, MoveKind.EXPAND) and to_node is None:
            chosen = choose_member(shard, from_node, world)
            if isinstance(chosen, PlanRefusal):
                return Refused(Reason.NODE_UNAVAILABLE, chosen.message)
            to_node = chosen
        if kind is MoveKind.CONTRACT and from_node is None:
            from_node = choose_victim(shard, (), world)
        for field, node in (("from_node", from_node), ("to_node", to_node)):
            if node is not None and node not in world.nodes and node not in shard.ensemble:
                return Refused(Reason.NODE_UNAVAILABLE, f"{field}: there is no node {node!r}")
        return Move(shard.shard, kind, from_node, to_node, request.force, request.abandon)


def _into(news: asyncio.Queue[ChangeProgress]) -> Callable[[ChangeProgress], None]:
    def put(progress: ChangeProgress) -> None:
        if not news.full():  # a slow reader misses steps, never the end
            news.put_nowait(progress)

    return put


def _unread(service: OperatorService) -> Refused:
    """An operator that has read nothing yet must not say that there is nothing."""
    return Refused(
        Reason.METADATA_UNAVAILABLE, service.store.last_error or "the metadata is being read", retry_after_ms=500)


def _behind(service: OperatorService) -> Refused | None:
    """Nothing is changed on metadata that nodes know to be old, or that is another cluster's."""
    why = service.standstill
    return Refused(Reason.METADATA_UNAVAILABLE, why.message) if why is not None else None


async def _refuse(context: Any, refused: Refused) -> NoReturn:
    await context.abort(*to_rpc_error(refused))
    raise AssertionError("abort raises")


def add_admin(server: grpc.aio.Server, service: OperatorService) -> None:
    admin_pb2_grpc.add_AdminServicer_to_server(AdminServicer(service), server)
