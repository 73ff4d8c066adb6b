"""Follow cursor: the leader's knowledge of one follower.

`match` counts only acknowledgements of the leader's current epoch (K5); `next` is what to push next.  Between
them lies what is in flight.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from ..base.effects import Space
from ..base.ids import EntryId, Member


class CursorStatus(StrEnum):
    TRUNCATING = "TRUNCATING"   # asked to truncate; nothing is pushed before the answer (O23)
    ATTACHED = "ATTACHED"
    SILENCED = "SILENCED"       # leaving: neither pushed to nor counted (O31)


@dataclass(slots=True)
class Cursor:
    follower: Member
    status: CursorStatus = CursorStatus.ATTACHED
    match: int = -1                      # durable and equal to ours up to here, in this epoch
    next: int = 0                        # offset to push next
    floor: int = 0                       # `next` at attachment: known equal below, though not counted
    commit: int = -1                     # highest commit the follower said it knows
    truncate_to: EntryId | None = None
    up: bool = True
    reading: bool = False                # a ReadLog for this cursor is under way
    space: Space = Space.FREE            # of the follower's disk, by its last word; the resend timer asks again (K20)
    absent: bool = False                 # no replica of this shard there; only a heartbeat now and then asks again
    inflight: deque[tuple[int, int]] = field(default_factory=deque)  # (last offset, bytes)
    inflight_bytes: int = 0
    rewound_for: EntryId | None = None   # the refused head we last rewound to
    unread: int = -1                     # the base that our disk could not give for this follower, -1: none
    unread_again: bool = False           # a read of it failed since the resend timer looked last
    looks: int = 0                       # how often the resend timer has found it so
    progress_seen: tuple[int, int] = (-2, -2)   # (match, commit) when the resend timer last looked
    heard_ms: int | None = None          # when the follower last answered
    waits_ms: int | None = None          # since when something waits for its answer, None: nothing does

    def attach(self, head: EntryId) -> None:
        """The follower's log ends at `head`, an entry of ours."""
        self.status = CursorStatus.ATTACHED
        self.truncate_to = None
        self.absent = False
        self.floor = head.offset + 1
        self.was_read()
        self.rewind()

    def rewind(self) -> None:
        """Whatever is in flight is lost: push again from what we know it has."""
        self.rewound_for = None
        self.next = max(self.match + 1, self.floor)
        self.inflight.clear()
        self.inflight_bytes = 0
        self.reading = False

    def pushed(self, last: int, size: int) -> None:
        self.next = last + 1
        self.inflight.append((last, size))
        self.inflight_bytes += size

    def acknowledged(self, upto: int, commit: int, space: Space = Space.FREE) -> None:
        """Take a cumulative ack; an older one changes nothing."""
        if upto > self.match:
            self.match = upto
            self.rewound_for = None
        self.commit = max(self.commit, commit)
        # A follower that holds more than we think (a rewind raced with its ack) needs no second copy.
        self.next = max(self.next, self.match + 1)
        self.absent = False
        self.space = space
        if 0 <= self.unread <= self.match:
            self.was_read()   # it has the entry, from us or from another member
        while self.inflight and self.inflight[0][0] <= self.match:
            self.inflight_bytes -= self.inflight.popleft()[1]

    def not_read(self, base: int) -> None:
        """Our disk cannot give the entry at `base`."""
        self.reading = False
        if self.unread != base:
            self.unread, self.looks = base, 0
        self.unread_again = True

    def look(self) -> None:
        """Count one look of the resend timer at an entry whose read failed since the last one (K15d)."""
        if self.unread_again and self.up:
            self.looks += 1
        self.unread_again = False

    def was_read(self) -> None:
        """Our disk gave what this follower needs next, or it needs another entry now."""
        self.unread, self.looks, self.unread_again = -1, 0, False

    def new_epoch(self) -> None:
        """Matches start at nothing in every epoch (K5); the follower's log stays what it is."""
        self.floor = max(self.floor, self.match + 1)
        self.match = -1
        self.progress_seen = (-2, -2)

    def is_quiet(self, now_ms: int, silence_ms: int) -> bool:
        """Say whether something has waited so long without any answer of the follower (O43)."""
        if self.waits_ms is None:
            return False
        since_ms = self.waits_ms if self.heard_ms is None else max(self.waits_ms, self.heard_ms)
        return now_ms - since_ms >= silence_ms

    def behind(self, head: int, commit: int) -> bool:
        """Say whether this follower still lacks an entry or the news of a commit."""
        return self.status is CursorStatus.TRUNCATING or (
            self.status is CursorStatus.ATTACHED and (self.match < head or self.commit < commit)
        )
