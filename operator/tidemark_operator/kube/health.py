"""What the operator says of itself: /livez, /readyz, /metrics.

Stays out: judging clusters, which their statuses do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, Histogram, generate_latest

ACTIVE = Gauge("tidemark_operator_leader", "Whether this operator does a cluster's work.", ["namespace", "cluster"])
RECONCILES = Counter("tidemark_operator_reconcile", "Passes by what they are about.", ["kind", "result"])
RECONCILE_SECONDS = Histogram("tidemark_operator_reconcile_duration_seconds", "How long a pass takes.", ["kind"])
RECONCILE_SUCCESS = Gauge(
    "tidemark_operator_reconcile_last_success_timestamp_seconds", "When a pass of this kind last succeeded.", ["kind"])
QUEUE_DEPTH = Gauge("tidemark_operator_queue_depth", "Keys that wait for a worker.")
QUEUE_OLDEST = Gauge("tidemark_operator_queue_oldest_seconds", "How long the first of them waits.")
LOOP_LAG = Gauge("tidemark_operator_event_loop_lag_seconds", "How late the event loop was at worst in 30 seconds.")
REQUESTS = Counter("tidemark_operator_kube_requests", "Requests to the API server.", ["method", "code"])
STATUS_WRITES = Counter("tidemark_operator_status_writes", "Statuses written because they changed.", ["kind"])
PROJECTION_LAG = Gauge(
    "tidemark_operator_projection_lag_revisions",
    "How far the Shard of a cluster that is furthest behind lies behind etcd, while they are written.",
    ["namespace", "cluster"])
EVENTS_TOLD = Counter("tidemark_operator_events", "Events: requests written, occurrences dropped.", ["result"])
WATCH_EVENT = Gauge(
    "tidemark_operator_watch_last_event_timestamp_seconds", "When a watch was last heard of.", ["kind"])


CONNECTION_S = 15.0
"""A connection ends after that, whether its caller has asked for something or not; a probe asks at once."""


class _Refused(asyncio.Protocol):
    """A connection above the cap."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


async def serve(address: str, ready: Callable[[], str], connections_max: int, seconds: float = CONNECTION_S) -> Health:
    """Serve on host:port; `ready` says why not, or nothing.  Raises OSError where that cannot be listened on."""

    async def livez(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")  # the loop answers; etcd and the API server have no part in it

    async def readyz(_request: web.Request) -> web.Response:
        why = ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    host, _, port = address.rpartition(":")
    served = runner.server
    assert served is not None, "it is set up"
    loop = asyncio.get_running_loop()

    def connection() -> asyncio.BaseProtocol:
        if len(served.connections) >= connections_max:
            return _Refused()
        made = served()
        loop.call_later(seconds, _end, made)
        return made

    return Health(runner, await loop.create_server(connection, host.strip("[]"), int(port)))


def _end(protocol: asyncio.BaseProtocol) -> None:
    transport = getattr(protocol, "transport", None)
    if transport is not None:
        transport.abort()


class Health:
    """The server while it answers."""

    def __init__(self, runner: web.AppRunner, server: asyncio.Server) -> None:
        self._runner, self._server = runner, server
        self.port = int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        await self._runner.cleanup()
