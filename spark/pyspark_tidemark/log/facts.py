"""Facts of a log, asked of its leaders: its shards, where each begins and ends, and its offsets at a time.

Stays out: what follows from the facts (planning).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..connecting import Cluster, Connection, group_of
from ..schema import Mode
from .planning import Extent


class LogFacts(Connection):
    """Asks about one group.  Every call raises InvalidOption, TidemarkError."""

    def __init__(self, cluster: Cluster, group: str, committed_of: str | None = None) -> None:
        """With the name of a sink, shards end where its last complete batch does; "" means every sink."""
        super().__init__(cluster)
        self._group = group
        self._committed_of = committed_of

    def shards(self) -> list[int]:
        """Return the group's shards now.  Raises InvalidOption for a group that is not there or holds documents."""
        return sorted(group_of(self.connected(), self._group, Mode.LOG).shards)

    def group_id(self) -> int:
        """Return the id of the group, which no other group of its name ever has.  Raises as `shards`."""
        return group_of(self.connected(), self._group, Mode.LOG).group_id

    def ends(self, shards: Sequence[int]) -> dict[int, int]:
        """Return the offset behind the last one that is to be read, by shard."""
        if self._committed_of is not None:
            return self._committed(shards, self._committed_of)
        client = self.connected()
        return self.each(shards, lambda shard: client.latest(self._group, shard) + 1)

    def _committed(self, shards: Sequence[int], name: str) -> dict[int, int]:
        """Return the offset behind the last complete batch, by shard; the first one where there is none (P16)."""
        ends: dict[int, int] = {}
        for sink in self.connected().sinks(self._group).list():
            for end in sink.ends if name in ("", sink.name) else ():
                ends[end.shard] = max(end.last + 1, ends.get(end.shard, 0))
        return ends | self.firsts([shard for shard in shards if shard not in ends])

    def firsts(self, shards: Sequence[int]) -> dict[int, int]:
        """Return the first offset that retention has left, by shard."""
        client = self.connected()
        return self.each(shards, lambda shard: client.earliest(self._group, shard))

    def at(self, shards: Sequence[int], ms: int) -> dict[int, int]:
        """Return the first offset logged at a time (milliseconds since 1970) or later, by shard."""
        client = self.connected()
        return self.each(shards, lambda shard: client.offset_at(self._group, shard, ms * 1000))

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
