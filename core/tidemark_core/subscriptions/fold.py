"""The fold of POSITION records of one log: where each named subscription stands (rules B1-B5).

`held` is what is confirmed; what is not decided yet waits behind it in log order, so that truncation takes it back and
a rollback that is confirmed drops it.  Stays out: appending positions, who waits for them.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from ..base.entry import Entry, Kind
from ..base.errors import RemoteViolation
from ..base.folds import Covering, Fold

NAME_MAX = 128
NAMES_MAX = 1000
UNDECIDED_MAX = 4096
LEASE_MS_MIN = 1_000
LEASE_MS_MAX = 365 * 86_400_000
LEASE_MS_DEFAULT = 7 * 86_400_000

_NAME_FIRST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_NAME_REST = _NAME_FIRST | frozenset("._-")
_LEASE = struct.Struct(">Q")
_COUNTS = struct.Struct(">II")
_HELD = struct.Struct(">qqQB")
_UNDECIDED = struct.Struct(">qqqQB")


class Position(NamedTuple):
    """What a subscription stands for: everything below `offset` was consumed.  `lease_ms` 0: deleted."""

    offset: int
    logged_ms: int    # the log's clock when it was committed
    lease_ms: int

    def live(self, now_ms: int) -> bool:
        """Say whether the lease still runs."""
        return now_ms - self.logged_ms <= self.lease_ms


class Noted(NamedTuple):
    """A POSITION record that is not decided yet; it lies at offset `at`."""

    at: int
    name: str
    position: Position


def wrong_name(name: str) -> str | None:
    """Say what is wrong with the name of a subscription, None when nothing is."""
    if not 1 <= len(name) <= NAME_MAX:
        return f"subscription has {len(name)} characters, must have 1 to {NAME_MAX}"
    if name[0] not in _NAME_FIRST or not _NAME_REST.issuperset(name):
        return f"subscription is {name!r}, must be letters, digits, '.', '_' and '-', a letter or digit first"
    return None


def position_payload(name: str, lease_ms: int) -> bytes:
    """Return the payload of a POSITION record; its offset stands in the header."""
    return _LEASE.pack(lease_ms) + name.encode("ascii")


def noted(entry: Entry) -> Noted:
    """Read a POSITION record with its payload; raises RemoteViolation when it says what cannot be."""
    try:
        (lease_ms,) = _LEASE.unpack_from(entry.payload)
        name = entry.payload[_LEASE.size:].decode("ascii")
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteViolation(f"B1: POSITION at {entry.base} cannot be read: {error}") from error
    if (wrong := wrong_name(name)) is not None:
        raise RemoteViolation(f"B1: POSITION at {entry.base}: {wrong}")
    if not 0 <= entry.sequence <= entry.base or lease_ms > LEASE_MS_MAX:
        raise RemoteViolation(f"B1: POSITION at {entry.base} names offset {entry.sequence} for {lease_ms} ms")
    return Noted(entry.base, name, Position(entry.sequence, entry.logged_ms, lease_ms))


class Subscriptions(Fold):
    """The fold.  Everything confirmed is in `held`, by name; the rest waits in log order."""

    __slots__ = ("_undecided", "held")

    tag = b"subs"
    kinds = frozenset((Kind.POSITION,))
    begins_empty = False

    def __init__(self) -> None:
        self.held: dict[str, Position] = {}
        self._undecided: deque[Noted] = deque()

    def __len__(self) -> int:
        return len(self.held)

    @property
    def undecided(self) -> tuple[Noted, ...]:
        """What is not decided yet, in log order."""
        return tuple(self._undecided)

    @property
    def crowded(self) -> bool:
        """Say whether too much is undecided to take more in (B9)."""
        return len(self._undecided) >= UNDECIDED_MAX

    def note(self, entry: Entry) -> None:
        """Fold one POSITION record in; raises RemoteViolation."""
        self._undecided.append(noted(entry))

    def decide(self, confirmed: int, covering: Covering) -> None:
        """What lies up to `confirmed` is decided: it counts, unless it is rolled back (B2)."""
        while self._undecided and self._undecided[0].at <= confirmed:
            at, name, position = self._undecided.popleft()
            if covering(at) is not None:
                continue
            if position.lease_ms == 0:
                self.held.pop(name, None)
                continue
            self.held[name] = position
            if len(self.held) > NAMES_MAX:
                self.purge(position.logged_ms)

    def undo_to(self, head: int) -> None:
        """Forget records behind `head`."""
        while self._undecided and self._undecided[-1].at > head:
            self._undecided.pop()

    def purge(self, logged_ms: int) -> None:
        """Free the memory of subscriptions that the log's clock has passed; changes no look-up (B5)."""
        self.held = {name: position for name, position in self.held.items() if position.live(logged_ms)}

    # --- looking up ---------------------------------------------------------------------------------------

    def newest(self, name: str, covering: Covering) -> Noted | None:
        """Return where a subscription will stand once all that can be confirmed is, None when it was never there.

        `at` is -1 when that is confirmed already; a lease of 0 says that it is being deleted.
        """
        for each in reversed(self._undecided):
            if each.name == name and covering(each.at) is None:
                return each
        return Noted(-1, name, self.held[name]) if name in self.held else None

    def known(self, logged_ms: int) -> Iterator[tuple[str, Position]]:
        """Yield what is confirmed and not forgotten at `logged_ms` of the log's clock, by name."""
        for name in sorted(self.held):
            if self.held[name].live(logged_ms):
                yield name, self.held[name]

    def lowest(self, now_ms: int) -> tuple[str, Position] | None:
        """Return the subscription that pins most, of those whose lease runs at `now_ms` (B4, B10)."""
        live = ((name, position) for name, position in self.held.items() if position.live(now_ms))
        return min(live, key=lambda each: (each[1].offset, each[0]), default=None)

    def room_for(self, name: str, logged_ms: int) -> bool:
        """Say whether one more name may be taken in (B9)."""
        names = {each for each, position in self.held.items() if position.live(logged_ms)}
        names |= {each.name for each in self._undecided if each.position.lease_ms}
        return name in names or len(names) < NAMES_MAX

    # --- checkpoints --------------------------------------------------------------------------------------

    def upto(self, offset: int, logged_ms: int) -> Subscriptions:
        """Return the fold as it was behind `offset`, at which the log's clock stood at `logged_ms`; B3, B5."""
        copy = Subscriptions()
        copy.held = {name: position for name, position in self.held.items() if position.live(logged_ms)}
        copy._undecided = deque(each for each in self._undecided if each.at <= offset)
        return copy

    def encode(self) -> bytes:
        parts = [_COUNTS.pack(len(self.held), len(self._undecided))]
        for name in sorted(self.held):
            parts += (_HELD.pack(*self.held[name], len(name)), name.encode("ascii"))
        for at, name, position in self._undecided:
            parts += (_UNDECIDED.pack(at, *position, len(name)), name.encode("ascii"))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, at: int) -> tuple[Subscriptions, int]:
        """Read `encode`'s bytes at `at`; return the fold and where it ended.  Raises struct.error when cut short."""
        fold = cls()
        held, undecided = _COUNTS.unpack_from(data, at)
        at += _COUNTS.size
        for _ in range(held):
            *position, size = _HELD.unpack_from(data, at)
            name, at = _text(data, at + _HELD.size, size)
            fold.held[name] = Position(*position)
        for _ in range(undecided):
            place, *position, size = _UNDECIDED.unpack_from(data, at)
            name, at = _text(data, at + _UNDECIDED.size, size)
            fold._undecided.append(Noted(place, name, Position(*position)))
        return fold, at


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    (text,) = struct.unpack_from(f"{size}s", data, at)
    return text.decode("ascii", "replace"), at + size
