"""The one part of a kubelet that the API server itself calls here: `kubectl logs`.

Stays out: running pods (`pod_runner`), following logs.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from .pod_runner import PodRunner

PORT = 10250


@asynccontextmanager
async def serving_logs(runner: PodRunner, address: str, certificate: Path, key: Path) -> AsyncIterator[None]:
    """Serve what the containers of a pod runner say, and tell the API server where, for as long as the block lasts."""

    async def logs(request: web.Request) -> web.Response:
        _namespace, pod, container = (request.match_info[part] for part in ("namespace", "pod", "container"))
        return web.Response(text=runner.log(pod, container))

    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    served = web.AppRunner(application)
    await served.setup()
    await web.TCPSite(served, address, PORT, ssl_context=context).start()
    try:
        for name in runner.nodes:
            await runner.kube.patch("nodes/status", name, {"status": {
                "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}},
                "addresses": [{"type": "InternalIP", "address": address}]}})
        yield
    finally:
        await served.cleanup()
