"""Floors: the epochs below which a node refuses operators, promised to a recovery of metadata (N10).

A floor outlives the replica: a shard that the node does not hold may have one, so that no late message creates it.
Stays out: choosing the epochs (`recovery`), the messages that are refused (`log_plane`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..base.effects import Put
from ..base.ids import ShardId
from ..base.refusals import Reason, Refused
from .messages import EPOCH_JUMP_MAX

FLOORS = "floors"
"""The column family: shard to epoch, eight bytes each, unsigned and big-endian."""

EPOCH_MAX = 1 << 63
"""No record is written above this epoch: messages hold 64 bits, and elections go on from it (N12)."""

FLOORS_MAX = 1 << 18
"""A node keeps so many, some tens of MiB; beyond it promises only for shards whose replica it holds (N10)."""

_NUMBER = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class PromiseRequest:
    """Refuse operators below these epochs, one for each shard named; answered `tuple[ReplicaReport, ...]` or `Refused`.

    The reports are those of the named shards that this node holds; the promise is durable when they leave (N10).
    """

    request: int
    floors: Mapping[ShardId, int]


class Floors:
    """The promises of one node."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[ShardId, int] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def recover(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load what the family holds."""
        self._held = {ShardId(_NUMBER.unpack(key)[0]): _NUMBER.unpack(value)[0] for key, value in rows}

    def of(self, shard: ShardId) -> int:
        """Return the floor of a shard, 0 when none was promised."""
        return self._held.get(shard, 0)

    def refusal(self, wanted: Mapping[ShardId, int], epoch_of: Callable[[ShardId], int]) -> Refused | None:
        """Say why these floors cannot be promised, None when they can (N10, N12).

        `epoch_of` returns the epoch of the replica here, 0 without one.
        """
        for shard, floor in wanted.items():
            own = epoch_of(shard)
            if not 0 < floor <= EPOCH_MAX or 0 < own < floor - EPOCH_JUMP_MAX:
                return Refused(Reason.WRONG_STATE, f"N12: floor {floor} of shard {shard:#x} is far above {own}", own)
        more = [shard for shard in wanted if shard not in self._held]
        if len(self._held) + len(more) > FLOORS_MAX and not all(epoch_of(shard) for shard in more):
            many = f"N10: {len(self._held)} floors are promised, more than {FLOORS_MAX} are for replicas that are here"
            return Refused(Reason.WRONG_STATE, many)
        return None

    def promise(self, wanted: Mapping[ShardId, int]) -> list[Put]:
        """Raise the floors, never lower one; return the writes that keep them."""
        writes = []
        for shard, floor in wanted.items():
            if floor > self.of(shard):
                self._held[shard] = floor
                writes.append(Put(FLOORS, _NUMBER.pack(shard), _NUMBER.pack(floor)))
        return writes
