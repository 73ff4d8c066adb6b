"""`python -m tidemark_operator --kubernetes`: start and end of an operator on Kubernetes.

Stays out: the work (`operator`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from datetime import timedelta

from tidemark_wire import descriptors

from . import health
from .api import EVERYWHERE, load_configuration, own_namespace
from .check import check
from .images import Images
from .operator import start

log = logging.getLogger("tidemark_operator")


async def run(flags: argparse.Namespace, ended: asyncio.Future[int]) -> int:
    """Run until `ended`; return its exit code.  Raises ValueError, OSError where it cannot begin."""
    if flags.check:
        return await _check(flags)
    connections_max = descriptors.connections_max(descriptors.raise_limit())
    overlap, images = timedelta(seconds=flags.ca_overlap), Images(flags.node_image, tuple(flags.allowed_image))
    operator = await start(_namespaces(flags), flags.kubeconfig, images, overlap)
    try:
        server = await health.serve(flags.http_listen, operator.not_ready, connections_max)
        try:
            log.info("operator answers at http://%s", flags.http_listen)
            return await ended
        finally:
            await server.close()
    finally:
        await operator.stop()


async def _check(flags: argparse.Namespace) -> int:
    namespaces = _namespaces(flags)
    problems = await check(await load_configuration(flags.kubeconfig), namespaces)
    for problem in problems:
        log.error("%s", problem)
    if not problems:
        log.info("all that an operator follows is there in %s", ", ".join(namespaces) or "every namespace")
    return 1 if problems else 0


def _namespaces(flags: argparse.Namespace) -> list[str]:
    if flags.all_namespaces:
        return [EVERYWHERE]
    try:
        return flags.namespace or [own_namespace()]
    except FileNotFoundError as error:
        raise ValueError("--namespace is needed outside of a pod") from error
