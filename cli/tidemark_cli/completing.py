"""Completion of names that the cluster knows, such as groups and nodes.  Quick and silent: a shell waits.

Stays out: commands and options, which complete by themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

TIMEOUT_S = 1.5


def _ask(ctx: typer.Context, names: Callable[[Any], Any]) -> list[str]:
    """Return names that a client gives; none where anything is wrong."""
    import asyncio

    import tidemark

    from . import target

    directory, cluster = ctx.params.get("state") or ".tidemark", ctx.params.get("cluster")

    async def main() -> list[str]:
        async with asyncio.timeout(TIMEOUT_S), await target.connect(Path(directory), cluster) as client:
            return sorted(await names(client))

    logging.disable()
    with suppress(Exception):
        return tidemark.run(main())
    return []


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a log group."""
    async def names(client: Any) -> list[str]:
        return [group.name for group in client.shard_map.groups]

    return _matching(_ask(ctx, names), incomplete)


def keyspaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a keyspace."""
    async def names(client: Any) -> list[str]:
        return [keyspace.name for keyspace in client.shard_map.keyspaces]

    return _matching(_ask(ctx, names), incomplete)


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a node."""
    async def names(client: Any) -> list[str]:
        return [node.node for node in client.shard_map.nodes]

    return _matching(_ask(ctx, names), incomplete)


def subscriptions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a subscription of the group that was named."""
    async def names(client: Any) -> set[str]:
        views = await client.subscriptions(ctx.params["group"], timeout_s=TIMEOUT_S)
        return {each.name for view in views.values() for each in view.subscriptions}

    return _matching(_ask(ctx, names), incomplete)
