"""Movers: the operator's machine of the plane of keyspaces, which brings each range to the owners that are wanted.

Each change of a record is one compare-and-swap (D63), also where its floor rises.  All that a mover remembers besides
may be lost: a successor asks the members again.
Stays out: which owners are wanted (`placing`, the operator), when a move may be finished (`moving`), rounds of floors
(`raising`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ..base.effects import Received, Send, SetTimer, TimerFired, Trace
from ..base.ids import Address, Member
from ..base.metadata import (
    LoadMetadata,
    MetadataLoaded,
    MetadataSaved,
    MetadataUncertain,
    NodeDown,
    NodeUp,
    SaveMetadata,
    SetActive,
)
from .floors import HintsGone, Promised, Synced
from .moving import Announced, Copied, CopyAsked, Known, unfinished
from .raising import FloorDue, Raising, Rounds
from .records import RangeRecord
from .ring import Owners, Range, aborted, begun, finished, wrong_move

ASK_MS = 1_000
"""A member that does not answer is asked again so often."""

TIMER = "ask"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The owners that a range should have next; None, or while a move is open: no others.

    `gone` are members of the range whose life of the disk is over for good.
    """

    address: Address
    owners: Owners | None
    gone: frozenset[Member] = frozenset()


class Mover:
    """One range.  It begins a move to the wanted owners, and finishes or aborts the one that is open.

    A move that begins ends the round that is open.
    """

    def __init__(self, address: Address, movers: Movers) -> None:
        self.record: RangeRecord | None = None
        self.revision = 0
        self._address = address
        self._movers = movers
        self._wish: Owners | None = None    # for the record that stands
        self._gone: frozenset[Member] = frozenset()
        self._saving: RangeRecord | None = None
        self._known: dict[Member, int] = {}
        self._copied: set[Member] = set()     # under the version of the record
        self._raising = Raising(address, movers.rounds)

    def step(self, now_ms: int, event: Any) -> list[Any]:
        """Consume one event."""
        match event:
            case MetadataLoaded(_, record, revision, fresh):
                return self._loaded(now_ms, record, revision, fresh=fresh)
            case MetadataSaved(_, writer, revision):
                if self._saving is None or self._saving.writer != writer:
                    return []
                return self._loaded(now_ms, self._saving, revision, fresh=True)
            case MetadataUncertain(_, writer):
                waits = self._saving is not None and self._saving.writer == writer
                return [LoadMetadata(self._address)] if waits else []
            case Received(_, Member() as sender, _, Known(_, version)):
                return [*self._heard(sender, version), *self._act()]
            case Received(_, Member() as sender, _, Copied(_, version)):
                if self.record is not None and version == self.record.range.version:
                    self._copied.add(sender)
            case Received(_, Member() as sender, _, HintsGone() | Promised() | Synced() as answer):
                if self._movers.active:
                    return [*self._raising.on_answer(sender, answer), *self._act()]
            case Wanted(_, owners, gone):
                self._wish, self._gone = owners, gone
            case FloorDue():
                return self._raise(now_ms, event)
            case NodeUp(member, _):
                return self._ask([member])
            case TimerFired():
                ended = self._raising.on_timer(now_ms)
                return [*ended, *self._act(), *self._ask(), *self._timer(now_ms)]
        return self._act()

    def _loaded(self, now_ms: int, record: RangeRecord | None, revision: int, *, fresh: bool) -> list[Any]:
        if record is None:
            self._raising.forget()
            return [SetTimer(self._address, TIMER, None)]
        if fresh:
            self._saving = None
        if revision <= self.revision:
            return self._act()
        before, self.record, self.revision, self._wish = self.record, record, revision, None
        self._raising.on_record(record.range)
        if before is not None and before.range.version == record.range.version:
            return [*self._act(), *self._timer(now_ms)]
        self._copied = set()
        self._known = {each: self._known[each] for each in record.range.members if each in self._known}
        return [*self._act(), *self._ask(), *self._timer(now_ms)]

    def resume(self, now_ms: int) -> list[Any]:
        """Go on with what is open; this operator holds the lease now."""
        return [*self._act(), *self._ask(), *self._timer(now_ms)]

    def _heard(self, sender: Member, version: int) -> list[Any]:
        """Note which record a member has on disk; a newer one than the store's is traced."""
        before, self._known[sender] = self._known.get(sender, 0), max(self._known.get(sender, 0), version)
        if self.record is None or version <= max(before, self.record.range.version):
            return []
        return [Trace(
            self._address, "range_behind",
            f"{sender} has version {version}, the metadata store has {self.record.range.version}")]

    def _raise(self, now_ms: int, due: FloorDue) -> list[Any]:
        """Begin a round, or give it up; none begins while the store is behind, or this operator is."""
        if self.record is None or self._saving is not None or self._behind or not self._movers.active:
            return []
        return [*self._raising.begin(now_ms, self.record.range, due), *self._timer(now_ms)]

    @property
    def _behind(self) -> bool:
        """Whether a member knows a newer record: the store is behind, or this operator is."""
        assert self.record is not None
        return any(version > self.record.range.version for version in self._known.values())

    # --- moves and floors ---------------------------------------------------------------------------------

    def _act(self) -> list[Any]:
        """Write the next record, where one is due and none is being written; nothing where something is behind."""
        if self.record is None or self._saving is not None or self._behind or not self._movers.active:
            return []
        record = self.record.range
        found = self._next(record)
        if found is None:
            return []
        following, what = found
        to = following.pending or record.pending or following.own
        detail = f"version {following.version}: {_text(record.own)} to {_text(to)}"
        if following.floor_ms != record.floor_ms:
            detail = f"{record.floor_ms} to {following.floor_ms}"
        self._saving = RangeRecord(following, self._movers.writer())
        return [SaveMetadata(self._address, self._saving, self.revision), Trace(self._address, what, detail)]

    def _next(self, record: Range) -> tuple[Range, str] | None:
        if record.pending is None:
            if (raised := self._raising.done) is not None:
                return raised, "floor_raised"
            wish = self._wish
            if wish is None or wish == record.own or wrong_move(record, wish) is not None:
                return None
            return begun(record, wish), "move_begun"
        if any(member in self._gone for member in record.pending.members):
            return aborted(record), "move_aborted"
        durable = [member for member, version in self._known.items() if version >= record.version]
        if unfinished(record, self._copied, durable, self._gone) is None:
            return finished(record), "move_finished"
        return None

    def _ask(self, members: Collection[Member] | None = None) -> list[Any]:
        """Ask these members, or all, for what the open move or the open round waits for."""
        if self.record is None or not self._movers.active:
            return []
        record, pending, index = self.record.range, self.record.range.pending, self._address.id
        if pending is None:
            return [*self._raising.ask(members)]
        asked = record.members if members is None else members
        return [
            *(Send(self._address, member, Announced(index, record)) for member in record.members
              if member in asked and self._known.get(member, 0) < record.version),
            *(Send(self._address, member, CopyAsked(index, record.version)) for member in pending.members
              if member in asked and member not in self._copied)]

    def _timer(self, now_ms: int) -> list[Any]:
        moving = self.record is not None and self.record.range.pending is not None
        waits = self._movers.active and (moving or self._raising.round is not None)
        return [SetTimer(self._address, TIMER, now_ms + ASK_MS if waits else None)]


class Movers:
    """The machine: all ranges of a cluster in one operator process."""

    def __init__(self, operator: str) -> None:
        """`operator` names this process, and no other one."""
        self.units: dict[int, Mover] = {}
        self.active = False
        self.rounds = Rounds.of(operator)
        self._operator = operator
        self._writes = 0

    def writer(self) -> str:
        """Return the name of the next write."""
        self._writes += 1
        return f"{self._operator}#{self._writes}"

    def step(self, now_ms: int, event: Any) -> list[Any]:
        """Consume one event; news of nodes go to every range."""
        match event:
            case SetActive(active):
                became, self.active = active and not self.active, active
                return [effect for mover in self.units.values() for effect in mover.resume(now_ms)] if became else []
            case NodeUp():
                return [effect for mover in self.units.values() for effect in mover.step(now_ms, event)]
            case NodeDown():
                return []
        address: Address = event.address
        mover = self.units.get(address.id)
        if mover is None:
            if not isinstance(event, MetadataLoaded) or event.record is None:
                return []
            mover = self.units[address.id] = Mover(address, self)
        effects = mover.step(now_ms, event)
        if isinstance(event, MetadataLoaded) and event.record is None:
            del self.units[address.id]
        return effects


def _text(owners: Owners) -> str:
    return f"{', '.join(member.node for member in owners.members)} ({'/'.join(map(str, owners.quorum))})"
