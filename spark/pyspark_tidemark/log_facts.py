"""Facts of a log at planning: its shards, where each begins and ends, and its offsets at a time.

Stays out: what follows from them (planning).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .connecting import Cluster
from .options import InvalidOption
from .planning import Extent

if TYPE_CHECKING:
    from tidemark import Client

AT_ONCE = 64
"""Shards that are asked about at the same time."""

LOG = "Log"


def extents(cluster: Cluster, group: str, starting_ms: int | None) -> dict[int, Extent]:
    """Ask the leaders of a group where its shards stand.  Raises InvalidOption for another group, and TidemarkError."""
    import tidemark

    return tidemark.run(_extents(cluster, group, starting_ms))


async def _extents(cluster: Cluster, group: str, starting_ms: int | None) -> dict[int, Extent]:
    from tidemark.errors import UnknownGroup

    async with await cluster.connect() as client:
        try:
            found = await client.group(group)
        except UnknownGroup as error:
            raise InvalidOption("group", error.message) from None
        if found.kind != LOG:
            raise InvalidOption("group", f"{group!r} is of kind {found.kind}: read it with mode=documents")
        free = asyncio.Semaphore(AT_ONCE)
        shards = sorted(found.shards)
        asked = (_extent(client, group, shard, starting_ms, free) for shard in shards)
        return dict(zip(shards, await asyncio.gather(*asked), strict=True))


async def _extent(
    client: Client, group: str, shard: int, starting_ms: int | None, free: asyncio.Semaphore
) -> Extent:
    async with free:
        end = await client.latest(group, shard) + 1
        first = await client.earliest(group, shard)
        at_timestamp = -1 if starting_ms is None else await client.offset_at(group, shard, starting_ms * 1000)
        # Retention and appends went on between the answers.
        return Extent(min(first, end), end, min(max(at_timestamp, first), end) if starting_ms is not None else -1)
