"""Facts of a log, asked of its leaders: its shards, where each begins and ends, and its offsets at a time.

A stream asks every few milliseconds, so one client stays connected until `close`.
Stays out: what follows from the facts (planning).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..connecting import Cluster, shards_of
from ..schema import Mode
from .planning import Extent

if TYPE_CHECKING:
    from tidemark.sync import SyncClient

AT_ONCE = 16
"""Shards that are asked about at the same time."""


class LogFacts:
    """Asks about one group; connects when it is asked first.  Every call raises InvalidOption, TidemarkError."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._client: SyncClient | None = None
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> LogFacts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; a later question connects again."""
        threads, self._threads = self._threads, None
        client, self._client = self._client, None
        if threads is not None:
            threads.shutdown(cancel_futures=True)
        if client is not None:
            client.close()

    def shards(self) -> list[int]:
        """Return the group's shards now.  Raises InvalidOption for a group that is not there or holds documents."""
        return shards_of(self._connected(), self._group, Mode.LOG)

    def ends(self, shards: Sequence[int]) -> dict[int, int]:
        """Return the offset behind the last one that may be read, by shard."""
        client = self._connected()
        return self._each(shards, lambda shard: client.latest(self._group, shard) + 1)

    def firsts(self, shards: Sequence[int]) -> dict[int, int]:
        """Return the first offset that retention has left, by shard."""
        client = self._connected()
        return self._each(shards, lambda shard: client.earliest(self._group, shard))

    def at(self, shards: Sequence[int], ms: int) -> dict[int, int]:
        """Return the first offset logged at a time (milliseconds since 1970) or later, by shard."""
        client = self._connected()
        return self._each(shards, lambda shard: client.offset_at(self._group, shard, ms * 1000))

    def extents(self, starting_ms: int | None) -> dict[int, Extent]:
        """Return where all shards stand.  Retention and appends go on between the answers, so they are fitted."""
        shards = self.shards()
        ends, firsts = self.ends(shards), self.firsts(shards)
        at = self.at(shards, starting_ms) if starting_ms is not None else {}
        found = {}
        for shard in shards:
            end = ends[shard]
            first = min(firsts[shard], end)
            found[shard] = Extent(first, end, min(max(at[shard], first), end) if at else -1)
        return found

    def _connected(self) -> SyncClient:
        if self._client is None:
            self._client = self._cluster.connect()
        return self._client

    def _each(self, shards: Sequence[int], ask: Callable[[int], int]) -> dict[int, int]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(AT_ONCE, "tidemark-facts")
        return dict(zip(shards, self._threads.map(ask, shards), strict=True))
