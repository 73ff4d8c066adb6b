"""Check: whether an operator that is started like this could work; what `helm test` asks.

Stays out: clusters and what becomes of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubernetes.aio.client import Configuration

from .api import KubeApi, KubeError
from .handlers import KINDS
from .operator import OWNED, OWNED_LABELS


async def check(configuration: Configuration, namespaces: Sequence[str]) -> list[str]:
    """Look once at everything an operator follows; return what stands against it."""
    problems = []
    api = KubeApi(configuration)
    try:
        for namespace in namespaces:
            for kind in (*KINDS, *OWNED):
                try:
                    await api.list(kind, namespace, OWNED_LABELS if kind in OWNED else "")
                except KubeError as error:
                    problems.append(f"{kind.plural} of {namespace or 'all namespaces'}: {error}")
    finally:
        await api.close()
    return problems
