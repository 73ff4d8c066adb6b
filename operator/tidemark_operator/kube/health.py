"""What the operator says of itself: /livez, /readyz, /metrics.

Stays out: judging clusters, which their statuses do.
"""

from __future__ import annotations

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


async def serve(address: str, ready: Callable[[], str]) -> web.AppRunner:
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
    await web.TCPSite(runner, host.strip("[]"), int(port)).start()
    return runner
