"""Forging: any message of any kind, its fields random, extreme, or close to what the receiver holds.

Stays out: who sends it, and to whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tidemark_core.base.entry import Batch, Durability, Entry, Kind, seal
from tidemark_core.base.ids import EntryId, Member
from tidemark_core.base.refusals import Reason

from .dice import Dice

EXTREMES = (-1, 0, 1, 1 << 31, 1 << 32, (1 << 32) + 1, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Known:
    """The forger's knowledge of the receiver: numbers that it holds, members that it trusts, entries that went by."""

    numbers: Sequence[int]
    members: Sequence[Member]
    entries: Sequence[Entry]


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def forged(kind: type, dice: Dice, known: Known) -> Any:
    """Return a message of this kind; every field is drawn by its type."""
    hints = _hints(kind)
    return kind(**{each.name: _value(hints[each.name], each.name, dice, known) for each in fields(kind)})


def _value(hint: Any, name: str, dice: Dice, known: Known) -> Any:
    if get_origin(hint) is UnionType:
        hint = dice.pick([each for each in get_args(hint) if each is not NoneType or dice.chance(0.5)] or [NoneType])
    if hint is NoneType:
        return None
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        if inner[-1] is Ellipsis:
            return tuple(_value(inner[0], name, dice, known) for _ in range(dice.between(0, 3)))
        return tuple(_value(each, name, dice, known) for each in inner)
    if hint is Member:
        return dice.pick(list(known.members))
    if hint is EntryId:
        return EntryId(_number(dice, known), _number(dice, known))
    if hint is Entry:
        return _entry(dice, known)
    if is_dataclass(hint) and isinstance(hint, type):
        return forged(hint, dice, known)
    if hint is str:
        return str(dice.pick(list(Reason)))
    if hint is bytes:
        return b""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return dice.pick(list(hint))
    return _number(dice, known)


def _number(dice: Dice, known: Known) -> int:
    number = dice.pick(list(known.numbers if known.numbers and dice.chance(0.7) else EXTREMES))
    return number + dice.between(-1, 1)


def _entry(dice: Dice, known: Known) -> Entry:
    """Return an entry whose checksums are right: one that went by, or its place with another payload."""
    if not known.entries:
        batch = Batch(b"forger-of-things", 0, 1, 1, 1, 0, b"", Durability.QUORUM)
        return seal(batch, kind=Kind.DATA, epoch=1, prev=EntryId(0, -1), prev_chain=0, logged_ms=0)
    entry = dice.pick(list(known.entries))
    return entry if dice.chance(0.3) else rewritten(entry)


def rewritten(entry: Entry) -> Entry:
    """Return another entry in the same place of the log, with right checksums."""
    batch = Batch(
        entry.producer, entry.sequence, entry.count, entry.first_timestamp_us, entry.last_timestamp_us, 0, b"",
        entry.durability,
    )
    return seal(
        batch, kind=entry.kind, epoch=entry.epoch, prev=entry.prev, prev_chain=entry.prev_chain,
        logged_ms=entry.logged_ms, order=entry.order,
    )
