"""`python -m tidemark_operator --kubernetes`: start and end of an operator on Kubernetes.

Stays out: the work (`operator`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path

from . import health
from .operator import start

log = logging.getLogger("tidemark_operator")

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


async def run(flags: argparse.Namespace, ended: asyncio.Future[int]) -> int:
    """Run until `ended`; return its exit code.  Raises ValueError, OSError where it cannot begin."""
    operator = await start(flags.namespace or [_own_namespace()], flags.kubeconfig)
    try:
        server = await health.serve(flags.http_listen, operator.not_ready)
        try:
            log.info("operator answers at http://%s", flags.http_listen)
            return await ended
        finally:
            await server.cleanup()
    finally:
        await operator.stop()


def _own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text().strip()
    except FileNotFoundError as error:
        raise ValueError("--namespace is needed outside of a pod") from error
