"""The operator's Admin service, as the commands use it.

Stays out: finding its address (target), showing anything.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from tidemark_operator.resources import kinds
from tidemark_wire import channel as wire
from tidemark_wire.tls import FileCredentials, TlsSettings
from tidemark_wire.v1 import admin_pb2, admin_pb2_grpc

from .failures import CommandFailed

CALL_TIMEOUT_S = 10.0


def kind_of(word: str) -> str:
    """Return the kind that `word` means; raises CommandFailed naming those there are."""
    kind = kinds.kind_of(word)
    if not kind:
        known = ", ".join(kinds.KINDS)
        raise CommandFailed(f"there is no kind {word!r}", f"The kinds are {known}.", code=2, reason="USAGE")
    return kind


class Admin:
    """One connection to the Admin service."""

    def __init__(self, address: str, tls: TlsSettings | None = None) -> None:
        self.address = address
        self._channel = wire.open_channel(address, FileCredentials(tls) if tls is not None else None)
        self._stub = admin_pb2_grpc.AdminStub(self._channel)

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def apply(self, manifests: str, *, dry_run: bool = False) -> list[str]:
        """Apply manifests; return one line per object."""
        request = admin_pb2.ApplyRequest(manifests=manifests, dry_run=dry_run)
        answer = await self._stub.Apply(request, timeout=CALL_TIMEOUT_S)
        return list(answer.applied)

    async def get(self, kind: str, name: str = "") -> list[dict[str, Any]]:
        """Return objects with their status."""
        answer = await self._stub.Get(admin_pb2.GetRequest(kind=kind, name=name), timeout=CALL_TIMEOUT_S)
        return [json.loads(text) for text in answer.objects]

    async def watch(self, kind: str, name: str = "") -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the objects now and on every change."""
        async for answer in self._stub.Watch(admin_pb2.GetRequest(kind=kind, name=name)):
            yield [json.loads(text) for text in answer.objects]

    async def delete(self, kind: str, name: str) -> None:
        await self._stub.Delete(admin_pb2.DeleteRequest(kind=kind, name=name), timeout=CALL_TIMEOUT_S)

    async def change(
        self,
        operation: str,
        group: str,
        shard: int,
        *,
        from_node: str = "",
        to_node: str = "",
        force: bool = False,
        transfer: bool = False,
        abandon: bool = False,
    ) -> AsyncIterator[admin_pb2.ChangeProgress]:
        """Change one shard and yield its progress; the last one's stage is DONE."""
        request = admin_pb2.ChangeRequest(
            operation=operation, group=group, shard=shard, from_node=from_node, to_node=to_node, force=force,
            transfer=transfer, abandon=abandon,
        )
        async for progress in self._stub.Change(request):
            yield progress

    async def describe(self) -> admin_pb2.OperatorDescription:
        return await self._stub.Describe(admin_pb2.OperatorDescribeRequest(), timeout=CALL_TIMEOUT_S)
