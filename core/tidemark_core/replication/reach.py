"""Reach: which members hear each other, as nodes report it, and what an election makes of it (rule O44).

A report counts for as long as it is fresh.  Of a node without one nothing is known, and nothing is held against it.
Stays out: elections themselves (`coordinator`), what a node reports (`hearing`, `log_plane`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ..base.ids import EntryId, Member
from ..base.quorum import has_majority
from .ensembles import Ensembles
from .messages import Diverged, Reach, Unheard

FRESH_SILENCES = 2
"""So many times `quorum_silence_ms` a report counts; a node repeats it three times in one."""
STABLE_WAITS = 2
"""A leadership that lasted so many waits was stable: the next wait is short again."""
WAIT_SILENCES_MAX = 16


@dataclass(slots=True)
class _Report:
    member: Member
    at_ms: int
    reached: frozenset[Member]
    lost: frozenset[Member]
    unheard: tuple[Unheard, ...]
    diverged: tuple[Diverged, ...]


class Reports:
    """The newest report of every node; one table for all shards of an operator.  Times are its milliseconds."""

    def __init__(self, silence_ms: int) -> None:
        self.silence_ms = silence_ms
        self.version = 0       # changes with what the reports say, not with each of them
        self._reports: dict[str, _Report] = {}
        self._deaf_ms: dict[tuple[str, Member], int] = {}   # since when a node does not hear a member

    def take(self, now_ms: int, sender: Member, m: Reach) -> None:
        before = self._reports.get(sender.node)
        after = _Report(sender, now_ms, frozenset(m.reached), frozenset(m.lost), m.unheard, m.diverged)
        self._reports[sender.node] = after
        self._note(sender.node, {*m.lost, *(member for found in m.unheard for member in found.members)}, now_ms)
        self.version += before is None or _facts(before) != _facts(after)

    def forget(self, node: str) -> None:
        """The node is down, or another process or disk of it answers."""
        self.version += self._reports.pop(node, None) is not None
        self._note(node, set(), 0)
        for pair in [pair for pair in self._deaf_ms if pair[1].node == node]:
            del self._deaf_ms[pair]

    def _note(self, node: str, deaf: set[Member], now_ms: int) -> None:
        for pair in [pair for pair in self._deaf_ms if pair[0] == node and pair[1] not in deaf]:
            del self._deaf_ms[pair]
        for member in deaf:
            self._deaf_ms.setdefault((node, member), now_ms)

    def reached(self, now_ms: int, member: Member) -> frozenset[Member] | None:
        """Return the members that one has a link with, itself included; None: it is not known."""
        report = self._fresh(now_ms, member)
        return None if report is None else report.reached | {member}

    def is_silent(self, now_ms: int, member: Member) -> bool:
        """Say whether a member that reports has said nothing for a silence: it hangs, whatever links others have."""
        report = self._reports.get(member.node)
        return report is not None and report.member == member and now_ms - report.at_ms >= self.silence_ms

    def unheard(self, now_ms: int) -> Iterator[tuple[Member, Unheard]]:
        """Yield what leaders do not hear, each with the member that says so."""
        for report in self._reports.values():
            if report.unheard and self._fresh(now_ms, report.member) is not None:
                for found in report.unheard:
                    yield report.member, found

    def diverged(self, now_ms: int) -> Iterator[tuple[Member, Diverged]]:
        """Yield the members whose documents leaders find to differ, each with the member that says so (U73b)."""
        for report in self._reports.values():
            if report.diverged and self._fresh(now_ms, report.member) is not None:
                for found in report.diverged:
                    yield report.member, found

    def cut(self, now_ms: int) -> list[tuple[str, str]]:
        """Return the pairs of nodes of which the first has not heard the second for a silence, though both report."""
        return sorted(
            (node, other.node) for (node, other), since_ms in self._deaf_ms.items()
            if now_ms - since_ms >= self.silence_ms and self._fresh(now_ms, other) is not None
            and self._fresh(now_ms, self._reports[node].member) is not None
        )

    def _fresh(self, now_ms: int, member: Member) -> _Report | None:
        report = self._reports.get(member.node)
        if report is None or report.member != member or now_ms - report.at_ms > FRESH_SILENCES * self.silence_ms:
            return None
        return report


def _facts(report: _Report) -> tuple[object, ...]:
    unheard = {(found.shard, found.epoch, found.members) for found in report.unheard}
    return report.member, report.reached, report.lost, unheard, report.diverged


# --- decisions ----------------------------------------------------------------------------------------------


def candidate(
    ensembles: Ensembles, leader: Member, nodes: Mapping[str, Member | None], reports: Reports, now_ms: int
) -> Member | None:
    """Return a member that reaches a majority where `leader` does not, None when there is none (O44).

    Members that the operator does not reach do not count: it cannot fence them.  Nor do those that hang: a link with a
    process that stands still looks whole, and no leader gets a majority out of it.
    """
    here = {
        member for member in ensembles.fencing
        if nodes.get(member.node) == member and not reports.is_silent(now_ms, member)
    }
    for member in ensembles.final:
        reached = reports.reached(now_ms, member)
        if member == leader or member not in here or reached is None:
            continue
        together = here & reached
        if has_majority(ensembles.final, together) and ensembles.answered(together):
            return member
    return None


def choose(
    ensembles: Ensembles, heads: Mapping[Member, EntryId], first: Member, reports: Reports, now_ms: int,
    cut: Collection[frozenset[Member]] = (),
) -> Member:
    """Return who leads: `first`, unless it is known to reach no majority and another member does (O44).

    The others that such a member reaches are as good a majority as any: it leads when none of a majority among them
    has a higher head.  Where it lacks entries, the one that has them leads first and gives them to it.  `cut` are pairs
    that did not hear each other, whatever their links say.
    """
    def reached(member: Member) -> frozenset[Member] | None:
        linked = reports.reached(now_ms, member)
        if linked is None:
            return None
        return frozenset(other for other in linked if frozenset((member, other)) not in cut)

    known = reached(first)
    if known is None or has_majority(ensembles.final, known):
        return first
    ranked = sorted((member for member in ensembles.final if member in heads), key=heads.__getitem__, reverse=True)
    hubs = [
        (member, found) for member in ranked
        if (found := reached(member)) is not None and has_majority(ensembles.final, found)
    ]
    for member, found in hubs:
        level = {other for other, head in heads.items() if other in found and head <= heads[member]}
        if ensembles.answered(level):
            return member
    for _hub, found in hubs:
        if ensembles.answered({other for other in heads if other in found}):
            return next(member for member in ranked if member in found)
    return first


class Patience:
    """Hysteresis: one such election in a wait that doubles until a leadership was stable (O44).  Milliseconds."""

    __slots__ = ("_last_ms", "_wait_ms")

    def __init__(self) -> None:
        self._last_ms: int | None = None
        self._wait_ms = 0

    def has_ended(self, now_ms: int) -> bool:
        return self._last_ms is None or now_ms - self._last_ms >= self._wait_ms

    def begin(self, now_ms: int, silence_ms: int) -> None:
        """An election is held now."""
        stable = self._last_ms is None or now_ms - self._last_ms >= STABLE_WAITS * self._wait_ms
        self._wait_ms = silence_ms if stable else min(2 * self._wait_ms, WAIT_SILENCES_MAX * silence_ms)
        self._last_ms = now_ms
