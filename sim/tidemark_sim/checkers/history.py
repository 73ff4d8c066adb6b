"""The facts that several promises are judged by: what was committed, who led, which entry has which id.

An entry is committed when any node's commit offset covers it.  The chained checksum of an entry vouches for the
whole log up to it, so comparing one number compares two prefixes.
Stays out: judging, but for what would make the facts themselves contradictory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import Reply
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.replication.replica import Role

from ..trace import Violation

if TYPE_CHECKING:
    from ..disk import Image
    from ..node import Node
    from ..world import World
    from .fates import Fates


class ShardHistory:
    """Facts of one shard."""

    __slots__ = (
        "at_base", "chains", "committed_in", "entries", "given_up", "last", "leader", "leader_epoch", "leaders")

    def __init__(self) -> None:
        self.entries: list[Entry] = []              # committed, in order
        self.committed_in: list[int] = []           # the epoch of whoever was first seen to have each committed
        self.at_base: dict[int, Entry] = {}
        self.given_up: set[tuple[int, int]] = set()   # epoch and base of what was committed and lost (K14e)
        self.last = -1
        self.chains: dict[tuple[int, int], int] = {}  # (epoch, base) -> chain, for every entry ever written
        self.leaders: dict[int, Member] = {}
        self.leader_epoch = 0
        self.leader: Member | None = None           # of the newest led epoch


class History:
    """Watches nodes' commit offsets and leaderships, and tells the checkers what is new."""

    fates: Fates   # what became of each entry

    def __init__(self, world: World, checkers: Any) -> None:
        self.world = world
        self.checkers = checkers
        self.shards: dict[ShardId, ShardHistory] = {shard: ShardHistory() for shard in world.shards}
        self._seen: dict[tuple[Member, ShardId], int] = {}

    def of(self, shard: ShardId) -> ShardHistory:
        return self.shards[shard]

    def standing(self, shard: ShardId, upto: int) -> list[Entry]:
        """Return what is committed up to `upto` and not rolled back, whatever it is."""
        kept: list[Entry] = []
        for entry in self.of(shard).entries:
            if entry.base > upto:
                break
            if entry.kind is Kind.ROLLBACK:
                while kept and kept[-1].base >= entry.sequence:
                    kept.pop()
            kept.append(entry)
        return kept

    def loss_accepted(self, shard: ShardId, before: Any, source: Member, lost: Sequence[Entry]) -> None:
        """Forget the end of the log that a survivor lacks; all in front of it stays committed (K14e)."""
        history = self.shards[shard]
        kept = len(history.entries) - len(lost)
        if history.entries[kept:] != list(lost):
            raise Violation("K14e", f"{source} lacks {lost[0].id}, and holds committed entries behind it")
        del history.entries[kept:], history.committed_in[kept:]
        for entry in lost:
            del history.at_base[entry.base]
            history.given_up.add((entry.epoch, entry.base))
        history.last = history.entries[-1].last if history.entries else -1

    def leading_image(self, shard: ShardId, history: ShardHistory) -> Image | None:
        """Return what the newest leader has written, or None while it does not lead."""
        if history.leader is None:
            return None
        node = self.world.nodes[history.leader.node]
        if node.core is None or node.member != history.leader:
            return None
        held = node.core.log.shards.get(shard)
        if held is None or held.leader is None or held.replica.state.epoch != history.leader_epoch:
            return None
        return node.disk.written.get(shard)

    def node_started(self, node: Node) -> None:
        for shard in self.shards:
            self._seen.pop((node.member, shard), None)

    def node_stepped(self, node: Node, events: Any) -> None:
        assert node.core is not None
        for shard, held in node.core.log.shards.items():
            replica = held.replica
            if held.leader is not None:
                epoch = replica.state.epoch
                history = self.shards[shard]
                if epoch not in history.leaders:
                    history.leaders[epoch] = node.member
                    if epoch > history.leader_epoch:
                        history.leader_epoch, history.leader = epoch, node.member
                    self.checkers.led(shard, node, epoch)
            self._look(shard, node, replica.commit)

    def node_replies(self, node: Node, shard: ShardId, reply: Reply) -> None:
        """An answer leaves in the middle of a step, and the node may die before the step ends."""
        self.look(node, shard)

    def look(self, node: Node, shard: ShardId) -> None:
        """Learn in the middle of a step what a node has committed by now."""
        if node.core is not None and shard in node.core.log.shards:
            self._look(shard, node, node.core.log.shards[shard].replica.commit)

    def _look(self, shard: ShardId, node: Node, commit: int) -> None:
        seen = self._seen.get((node.member, shard), -1)
        if commit > seen:
            self._advance(shard, node, seen, commit)
        if commit != seen:
            self._seen[node.member, shard] = commit

    def _advance(self, shard: ShardId, node: Node, seen: int, commit: int) -> None:
        """A node's commit offset rose: its log up to there is committed."""
        history = self.shards[shard]
        image = node.disk.written[shard]
        at = image.position(seen + 1)
        end = seen
        for entry in image.entries[at:]:
            if entry.last > commit:
                break
            end = entry.last
            if (entry.epoch, entry.base) in history.given_up:
                if node.member in self.world.metadata.record(shard).ensemble:
                    raise Violation("K14e", f"{node.name} commits {entry.id}, which was given up")
                return   # a copy that left, and is deleted later
            known = history.at_base.get(entry.base)
            if known is not None:
                if known.chain != entry.chain:
                    raise Violation(
                        "NoLogDivergence",
                        f"{node.name} has {entry.id} committed at {entry.base}, others {known.id}",
                    )
                continue
            if entry.base != history.last + 1:
                raise Violation(
                    "NoLogDivergence", f"{node.name} commits {entry.id}, but {history.last} is the last known"
                )
            if history.entries and entry.prev_chain != history.entries[-1].chain:
                raise Violation(
                    "NoLogDivergence", f"{node.name} commits {entry.id} behind another log than was committed"
                )
            assert node.core is not None
            history.entries.append(entry)
            history.committed_in.append(node.core.log.shards[shard].replica.state.epoch)
            history.at_base[entry.base] = entry
            history.last = entry.last
            self.checkers.committed(shard, node, entry)
        assert node.core is not None
        replica = node.core.log.shards[shard].replica
        # Everything up to commit may have been trimmed away.
        first = image.bases[0] if image.bases else replica.log.first
        if end != commit >= first and replica.state.role is not Role.SEEDING:
            raise Violation("NoLogDivergence", f"{node.name} commits up to {commit}, which ends none of its entries")
