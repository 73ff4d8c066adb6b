"""Keeping: the hints of a node with their disk, from a coordinator's message to the delivery (D69, D70, D73).

Writes of one range are durable in the order they are given, so each answer rides behind all that it rests on.
Stays out: running replays (the plane does, as writes of the node itself), which ranges a node owns.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from ...base.effects import Delete, DeleteRange, Effect, Persist, Put, Send, Trace, Write
from ...base.ids import Address, Peer
from ..coordinating.outcomes import Outcome
from ..floors import HintsAsked, HintsGone
from ..holding.layout import INDEX_MAX
from ..inspection import Block
from ..merge import greatest
from ..messages import Keep, Kept, Refusal
from ..ring import keyspace_of
from ..stamps import Clock
from .hints import Bounds, Hint, Hints, decode_hint, encode_hint, hint_of
from .replaying import Replays

HINTS = "ks_hints"
"""The family of hints: their bytes by number."""

PROMISES = "ks_promises"
"""The family of what the node has promised about hints: the time by range."""


class _Asked(NamedTuple):
    """An operator that waits, and the numbers of the hints that must be delivered first."""

    operator: Peer
    question: HintsAsked
    left: set[int]
    since_ms: int


class Keeper:
    """The hints of one node."""

    def __init__(self, plane: int, clock: Clock, bounds: Bounds, replays: Replays) -> None:
        self.hints = Hints(bounds)
        self._plane = plane
        self._clock = clock
        self._replays = replays
        self._asked: dict[int, _Asked] = {}     # by range: the last question that is not answered

    def recover(self, hints: Iterable[tuple[bytes, bytes]], promises: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of both families.  Raises RemoteViolation when a hint is damaged."""
        held = {_number(key): decode_hint(value) for key, value in hints}
        self.hints.recover(held, {_number(key): _number(value) for key, value in promises})
        for number, hint in self.hints.held.items():
            self._replays.add(hint.range, number)

    def on_keep(self, now_ms: int, sender: Peer, m: Keep, window_ms: int) -> list[Effect]:
        """Take a hint, or say why not.  One that is held already is answered again, and not kept twice.

        `window_ms` is how long hints of the range may lie here before no more is taken.
        """
        hint = hint_of(m.range, m.place, m.row, obliged=True)
        writes: list[Write] = []
        if self.hints.number_of(hint) is None:
            refused = self._refusal(now_ms, hint, window_ms)
            if refused is not None:
                return [Send(self._at(m.range), sender, Kept(m.range, m.operation, m.attempt, refused))]
            self._clock.saw(greatest(m.row), now_ms)
            number, gone = self.hints.take(hint)
            self._replays.add(m.range, number)
            writes = [*map(_delete, gone), Put(HINTS, _bytes(number), encode_hint(hint))]
        kept = Send(self._at(m.range), sender, Kept(m.range, m.operation, m.attempt))
        return [Persist(self._at(m.range), tuple(writes), (kept,))]

    def _refusal(self, now_ms: int, hint: Hint, window_ms: int) -> Refusal | None:
        if greatest(hint.row).ms > self._clock.latest_ms(now_ms):
            return Refusal.FUTURE
        return self.hints.refusal(now_ms, hint, window_ms)

    def on_asked(self, now_ms: int, sender: Peer, m: HintsAsked) -> list[Effect]:
        """Promise to take no hint up to a floor; the answer waits for the obliged ones that are held (D69)."""
        before_ms = self.hints.promised_ms.get(m.range)
        left, gone = self.hints.promise(m.range, m.floor_ms)
        asked = self._asked.get(m.range)
        since_ms = asked.since_ms if asked is not None else now_ms
        self._asked[m.range] = _Asked(sender, m, left, since_ms)
        writes: list[Write] = [*map(_delete, gone)]
        promised_ms = self.hints.promised_ms[m.range]
        if promised_ms != before_ms:
            writes.append(Put(PROMISES, _bytes(m.range), _bytes(promised_ms)))
        return self._write(m.range, writes)

    def forget(self, keyspace: int) -> Write:
        """Forget all but the hints of a keyspace that is deleted; return the write that removes promises (D81)."""
        self.hints.forget(keyspace)
        for index in [index for index in self._asked if keyspace_of(index) == keyspace]:
            del self._asked[index]
        return DeleteRange(PROMISES, _bytes(keyspace << 32), _bytes(keyspace << 32 | INDEX_MAX))

    def erase(self, keyspace: int, most: int) -> tuple[Write, ...]:
        """Forget the next hints of a keyspace that is deleted; return the writes that remove them."""
        numbers = self.hints.page(keyspace, most)
        for number in numbers:
            self._replays.dropped(self.hints.held[number].range, number)
            self.hints.delivered(number)
        return tuple(map(_delete, numbers))

    def blocks(self, index: int) -> Block | None:
        """Say which hints the floor of a range waits for here."""
        asked = self._asked.get(index)
        if asked is None:
            return None
        return Block(f"{len(asked.left)} hints up to {asked.question.floor_ms} are not delivered", asked.since_ms)

    # --- replays ------------------------------------------------------------------------------------------

    def waits(self, known: Container[int]) -> bool:
        """Say whether a hint waits for its replay in a range that is known."""
        return self._replays.waits(known)

    def begin(self, now_ms: int, known: Container[int]) -> list[tuple[int, Hint]]:
        """Return the hints to replay now, with their numbers; answer each with `replayed`."""
        found = []
        for number in self._replays.begin(now_ms, known):
            hint = self.hints.held.get(number)
            if hint is not None:
                found.append((number, hint))
            else:
                self._replays.ended(number)     # it was a cache, and is gone
        return found

    def replayed(self, now_ms: int, number: int, outcome: Outcome) -> list[Effect]:
        """Remove a hint that a write quorum has, or that too many owners refuse for good; others stay (D70, D73)."""
        self._replays.ended(number)
        hint = self.hints.held.get(number)
        if hint is None:
            return []
        effects: list[Effect] = []
        match outcome:
            case Outcome.OK:
                self.hints.delivered(number)
            case Outcome.BELOW:
                self.hints.overtaken(number)
                if hint.obliged:
                    lost = f"the floor of the range overtook {self.hints.lost[hint.range]} obliged hints here (D70)"
                    effects.append(Trace(self._at(hint.range), "hints_lost", lost))
            case _:
                self._replays.failed(now_ms, hint.range, number)
                return []
        asked = self._asked.get(hint.range)
        if asked is not None:
            asked.left.discard(number)
        return [*effects, *self._write(hint.range, [_delete(number)])]

    # --- the disk -----------------------------------------------------------------------------------------

    def _write(self, index: int, writes: Sequence[Write]) -> list[Effect]:
        """Write, and answer the operator behind it where no hint is left that it waits for."""
        asked = self._asked.get(index)
        then: tuple[Effect, ...] = ()
        if asked is not None and not asked.left:
            del self._asked[index]
            then = (Send(self._at(index), asked.operator, HintsGone(index, asked.question.round)),)
        return [Persist(self._at(index), tuple(writes), then)] if writes or then else []

    def _at(self, index: int) -> Address:
        return Address(self._plane, index)


def _delete(number: int) -> Delete:
    return Delete(HINTS, _bytes(number))


def _bytes(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")
