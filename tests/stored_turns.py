"""Random turns of writes as cores emit them: logs that grow, are cut, trimmed, repaired, and rows of planes."""

from __future__ import annotations

from random import Random

from google_crc32c import value as crc32c
from tidemark_core.base.effects import (
    Delete,
    DeleteRange,
    DropAfter,
    DropBefore,
    DropPayloads,
    DropUnit,
    Persist,
    Put,
    PutCheckpoint,
    PutEntry,
    PutMany,
    PutState,
    Wipe,
    Write,
)
from tidemark_core.base.entry import NO_PRODUCER, Batch, Entry, Kind, control, seal
from tidemark_core.base.ids import NOTHING, Address, EntryId, ShardId, of_shard
from tidemark_core.subscriptions.fold import position_payload

SHARDS = (ShardId(1), ShardId(2), ShardId(1 << 32))
UNITS = (Address(3, 1), Address(3, 2), Address(255, (1 << 64) - 1))   # ids like those of shards, in other planes
FAMILIES = ("docs", "byseq")
KEYS = (b"", b"a", b"a\x00", b"ab", b"b", b"\xff", b"\xff\xff")


class Log:
    """What one shard's core knows of its log, so that the next write fits it."""

    def __init__(self, shard: ShardId) -> None:
        self.shard = shard
        self.entries: list[Entry] = []
        self.head = NOTHING

    def write(self, dice: Random) -> list[Write]:
        """Return the next writes, which go together."""
        kind = dice.choices(
            ("append", "cut", "trim", "drop", "repair", "state", "checkpoint", "wipe"), (30, 6, 10, 8, 4, 4, 3, 1)
        )[0]
        last = self.head.offset
        match kind:
            case "append":
                return [self._append(dice) for _ in range(dice.randint(1, 3))]
            case "cut":
                kept = dice.choice([-1, last, *(entry.last for entry in self.entries)])
                self.entries = [entry for entry in self.entries if entry.last <= kept]
                self.head = self.entries[-1].id if self.entries else EntryId(1, kept) if kept >= 0 else NOTHING
                return [DropAfter(kept)]
            case "trim":
                first = dice.randint(0, last + 2)
                self.entries = [entry for entry in self.entries if entry.last >= first]
                return [DropBefore(first)]
            case "drop":
                low = dice.randint(0, last + 1)
                return [DropPayloads(low, dice.randint(low, last + 1))]
            case "repair" if self.entries:
                return [PutEntry(dice.choice(self.entries))]
            case "wipe":
                self.entries, self.head = [], EntryId(1, dice.choice((-1, 9, last)))
                return [Wipe(), PutState(b"wiped")]
            case "checkpoint":
                return [PutCheckpoint(dice.randbytes(3))]
            case _:
                return [PutState(dice.randbytes(3))]

    def _append(self, dice: Random) -> PutEntry:
        kind = dice.choice((Kind.DATA, Kind.DATA, Kind.DATA, Kind.NOOP, Kind.POSITION))
        if kind is Kind.DATA:
            payload = dice.randbytes(dice.choice((0, 1, 20)))
            batch = Batch(b"p" * 16, 0, dice.randint(1, 12), 1, 2, crc32c(payload), payload)
            entry = seal(batch, kind=kind, epoch=1, prev=self.head, prev_chain=0, logged_ms=0)
        else:
            payload = position_payload("one", 1_000) if kind is Kind.POSITION else b""
            entry = control(kind, payload, epoch=1, prev=self.head, prev_chain=0, logged_ms=0)
        assert entry.producer != NO_PRODUCER or kind is not Kind.DATA
        self.entries.append(entry)
        self.head = entry.id
        return PutEntry(entry.bare() if kind is Kind.DATA and dice.random() < 0.2 else entry)


def plane_write(dice: Random) -> Write:
    """Return a write of a plane to a family of its own."""
    family, key = dice.choice(FAMILIES), dice.choice(KEYS)
    match dice.randrange(5):
        case 0:
            return Delete(family, key)
        case 1:
            return DeleteRange(family, key, dice.choice(KEYS))
        case 2:
            keys = dice.choices(KEYS, k=dice.randint(0, 3))
            return PutMany(family, tuple((each, dice.randbytes(2)) for each in keys))
        case _:
            return Put(family, key, dice.randbytes(2))


def unit_writes(dice: Random) -> tuple[Write, ...]:
    """Return writes of a unit that is no shard."""
    if dice.random() < 0.4:
        return DropUnit(), plane_write(dice)
    return PutState(dice.randbytes(2)), *([PutCheckpoint(dice.randbytes(2))] * dice.randint(0, 1)), plane_write(dice)


def turns(dice: Random, count: int) -> list[list[Persist]]:
    """Return turns of some persists each, which a store takes in this order."""
    logs = [Log(shard) for shard in SHARDS]
    made: list[list[Persist]] = []
    for _ in range(count):
        turn: list[Persist] = []
        for _ in range(dice.randint(1, 4)):
            log = dice.choice(logs)
            if dice.random() < 0.15:
                turn.append(Persist(dice.choice(UNITS), unit_writes(dice)))
                continue
            writes: list[Write] = []
            for _ in range(dice.randint(1, 3)):
                writes += [plane_write(dice)] if dice.random() < 0.2 else log.write(dice)
            turn.append(Persist(of_shard(log.shard), tuple(writes)))
        made.append(turn)
    return made
