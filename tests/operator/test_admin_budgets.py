"""The Admin service shares its watches and its changes among callers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tidemark_operator import admin
from tidemark_operator.admin import AdminServicer
from tidemark_wire.v1 import admin_pb2

EVE, ANN = "spiffe://dev/client/eve", "spiffe://dev/client/ann"
ROOT, ALICE = "spiffe://dev/admin/root", "spiffe://dev/admin/alice"


class Refused(Exception):
    """The call was aborted."""


class Call:
    """A gRPC context of one caller."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"peer_spiffe_id": [self._uri.encode()]}

    def peer(self) -> str:
        return "ipv4:1.2.3.4:5"

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
        assert grpc.StatusCode.RESOURCE_EXHAUSTED is code
        raise Refused(details)


@pytest.fixture
def servicer(monkeypatch: pytest.MonkeyPatch) -> AdminServicer:
    """The service, with objects that stay as they are and moves that do not end."""
    monkeypatch.setattr(admin, "WATCHERS_MAX", 8)
    monkeypatch.setattr(admin, "CHANGES_MAX", 4)
    service: Any = SimpleNamespace(
        cluster="dev", access_lists={}.get, tls=object(), add_watcher=asyncio.Event,
        remove_watcher=lambda event: None, reconfigurer=SimpleNamespace(active=False),
    )
    made = AdminServicer(service)

    async def get(*_: Any, **__: Any) -> admin_pb2.GetResponse:
        return admin_pb2.GetResponse()

    async def run(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(made, "_get", get)
    monkeypatch.setattr(made, "_run", run)
    monkeypatch.setattr(made, "_move", lambda request: object())
    return made


async def test_t12_one_caller_has_half_of_the_watches_that_others_leave(servicer: AdminServicer) -> None:
    def watch(who: str) -> Any:
        return servicer.Watch(admin_pb2.GetRequest(kind="Shard"), Call(who))

    open_watches = [watch(EVE) for _ in range(4)]
    for each in open_watches:
        assert await anext(each) == admin_pb2.GetResponse()
    with pytest.raises(Refused, match=f"{EVE} holds 4 of this server's 8 watches"):
        await anext(watch(EVE))
    other = watch(ANN)
    assert await anext(other) == admin_pb2.GetResponse()
    await open_watches.pop().aclose()
    again = watch(EVE)
    with pytest.raises(Refused):
        await anext(again)      # the other one holds one of those that it may share
    await other.aclose()
    again = watch(EVE)
    assert await anext(again) == admin_pb2.GetResponse()
    for each in (*open_watches, again):
        await each.aclose()


async def test_t12_one_caller_has_half_of_the_changes_that_others_leave(servicer: AdminServicer) -> None:
    def change(who: str) -> Any:
        return asyncio.ensure_future(anext(servicer.Change(admin_pb2.ChangeRequest(operation="SWAP"), Call(who))))

    running = [change(ROOT) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="changes under way"):
        await change(ROOT)
    running.append(change(ALICE))
    done, _ = await asyncio.wait(running, timeout=0.05)
    assert not done, "all of them go on"
    for each in running:
        each.cancel()
    assert 3 == servicer._changes.used, "a caller that goes away does not end its change"
