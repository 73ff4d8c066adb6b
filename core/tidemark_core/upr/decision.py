"""Decision: whether a member can serve a stream from a position, by one function of what both have (rule U57).

Everything about the member is read from the snapshot that the stream would scan.  Stays out: reading, streaming, what a
consumer does with a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..base.ids import ShardId
from .common import Had, common
from .history import FailoverLog, Point, history_id
from .positions import History, Partial, Position, PositionRefused, Scope, wrong_partial, wrong_point


class Asked(NamedTuple):
    """A request for one stream of `shard`; `position` is what the consumer stored, `partial` what it staged behind it.

    `scope` is that of the stream.
    """

    shard: ShardId
    scope: Scope
    position: Position
    partial: Partial | None = None


class Here(NamedTuple):
    """One member's state of one shard, read from one snapshot.

    `applied` is the cut up to which documents are folded, -1 before the first entry.  `purged` is the purge seqno.
    `first_kept` is the first offset of the log.  `read_index` is the answer of a round that this leader began after the
    request, None at every other member.
    """

    applied: int
    purged: int
    failover: FailoverLog
    first_kept: int = 0
    read_index: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The stream starts, or goes on, behind `resume`."""

    resume: int


@dataclass(frozen=True, slots=True)
class NotMyShard:
    """This node does not serve the shard; `map_version` is the version of the shard map that says so."""

    map_version: int


@dataclass(frozen=True, slots=True)
class Behind:
    """The member has folded less than the consumer has; another member, or this one later, serves it.  Retriable."""

    applied: int


@dataclass(frozen=True, slots=True)
class HistoryLost:
    """The consumer has changes that are not in the shard's history; up to `common` both are equal."""

    common: int


@dataclass(frozen=True, slots=True)
class Purged:
    """Deletes up to `purged` that the consumer has not seen are gone."""

    purged: int


@dataclass(frozen=True, slots=True)
class HistoryTrimmed:
    """The log begins at `first`, above the position."""

    first: int


Refusal = NotMyShard | PositionRefused | Behind | HistoryLost | Purged | HistoryTrimmed


def decide(asked: Asked, here: Here | None, map_version: int = 0) -> Accepted | Refusal:
    """Return whether the stream may start here; `here` is None when this node does not serve the shard (U57)."""
    if here is None:
        return NotMyShard(map_version)
    if (wrong := _wrong(asked)) is not None:
        return wrong
    if here.applied < 0:
        return Behind(here.applied)   # nothing is folded, not even a history to compare with
    point, partial = asked.position.point, asked.partial
    at = point if partial is None else partial.end
    resume = point.seqno if partial is None else partial.last
    if (point.epoch or at.epoch) and (refusal := _of_history(at, here)) is not None:
        return refusal if isinstance(refusal, Behind) else _lost(asked, here)
    if asked.scope.history is History.ALL:
        return HistoryTrimmed(here.first_kept) if resume + 1 < here.first_kept else Accepted(resume)
    if _purged(point, partial, resume, here):
        return Purged(here.purged)
    return Accepted(resume)


def _wrong(asked: Asked) -> PositionRefused | None:
    """Return what is wrong with the position as it stands, or for this stream."""
    position, partial = asked.position, asked.partial
    stored, wanted = position.scope, asked.scope
    if stored.group != wanted.group:
        return PositionRefused("group", f"position is of group {stored.group}, the stream of group {wanted.group}")
    if position.shard != asked.shard:
        return PositionRefused("shard", f"position is of shard {position.shard:#x}, the stream of {asked.shard:#x}")
    if stored.filter != wanted.filter:
        return PositionRefused("filter", "position was stored by a stream with another filter or projection")
    if stored.history != wanted.history:
        return PositionRefused("history", f"position has history {stored.history.name}, not {wanted.history.name}")
    if (wrong := wrong_point(position.point)) is not None:
        return wrong
    if partial is None:
        return None
    if wanted.history is History.ALL:
        return PositionRefused("partial", "a stream of all versions goes on from whole entries only")
    return wrong_partial(partial, position.point)


def _of_history(at: Point, here: Here) -> Behind | HistoryLost | None:
    """Compare the newest thing that the consumer knows of, `at`, with the history here.

    A leader whose read index came back is right about the end of the log.  Any other member may only be behind.
    """
    log, certain = here.failover, here.read_index is not None
    if at.lineage != log.newest.lineage:
        # A member that has not folded a newer epoch yet cannot know the lineage which that epoch brought.
        newer = at.epoch > log.newest.epoch and not certain
        return Behind(here.applied) if newer else HistoryLost(0)
    if at.seqno > here.applied:
        lost = here.read_index is not None and here.read_index < at.seqno
        return HistoryLost(0) if lost else Behind(here.applied)
    if at.epoch > log.newest.epoch and not certain:
        return Behind(here.applied)   # it has not folded that epoch's beginning, which may be above the position
    return None if log.covers(at) else HistoryLost(0)


def _purged(point: Point, partial: Partial | None, resume: int, here: Here) -> bool:
    """Say whether deletes are missing: only a snapshot from the beginning holds no document that they could concern."""
    if resume >= here.purged:
        return False
    if partial is None:
        return point.seqno > 0
    return not (partial.start == 0 and partial.purged == here.purged)


def _lost(asked: Asked, here: Here) -> HistoryLost:
    point, partial = asked.position.point, asked.partial
    if partial is None:
        had = Had(history_id(point.lineage, point.epoch), point.seqno, point.seqno, point.seqno)
    else:
        end = partial.end
        had = Had(history_id(end.lineage, end.epoch), partial.last, partial.start, end.seqno, partial.purged)
    return HistoryLost(common(had, here.failover, here.applied, here.purged))
