"""The record of a shard as the release before this one reads and writes it, copied from its source.

Stays out: what this release stores (`tidemark_core.replication.records`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import EntryId, Member
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import Change, Phase, Status

RECORD_FORMAT = 2


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """Metadata of one shard; the replication factor is `len(ensemble)` and is never stored apart (H4).

    `copies` members of them keep each payload, 0: all (K2).
    `removed` are members that left and whose replica is still to be deleted.  `writer` names the attempt
    that wrote this version, so that a transaction of unknown outcome can be read back and recognised.
    """

    epoch: int
    election: int
    status: Status
    ensemble: tuple[Member, ...]
    leader: Member | None = None
    change: Change | None = None
    removed: tuple[Member, ...] = ()
    writer: str = ""
    copies: int = 0

    def encode(self) -> bytes:
        change = self.change
        return json.dumps(
            {
                "format": RECORD_FORMAT,
                "epoch": self.epoch,
                "election": self.election,
                "status": self.status,
                "ensemble": [list(member) for member in self.ensemble],
                "leader": list(self.leader) if self.leader else None,
                "change": change
                and {
                    "operation": change.operation,
                    "phase": change.phase,
                    "old": list(change.old) if change.old else None,
                    "new": list(change.new) if change.new else None,
                    "new_head": list(change.new_head),
                    "copies": change.copies,
                },
                "removed": [list(member) for member in self.removed],
                "writer": self.writer,
                "copies": self.copies,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> ShardRecord:
        """Read a stored record; raises RemoteViolation when its format is unknown or it is damaged."""
        try:
            raw: dict[str, Any] = json.loads(data)
            if raw["format"] != RECORD_FORMAT:
                raise RemoteViolation(f"shard record has format {raw['format']}, this build reads {RECORD_FORMAT}")
            change = raw["change"]
            return cls(
                epoch=raw["epoch"],
                election=raw["election"],
                status=Status(raw["status"]),
                ensemble=tuple(Member(*pair) for pair in raw["ensemble"]),
                leader=_member(raw["leader"]),
                change=change
                and Change(
                    Operation(change["operation"]), Phase(change["phase"]),
                    _member(change["old"]), _member(change["new"]), EntryId(*change["new_head"]),
                    change["copies"],
                ),
                removed=tuple(Member(*pair) for pair in raw["removed"]),
                writer=raw["writer"],
                copies=raw["copies"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RemoteViolation(f"shard record cannot be read: {error!r}") from error


def _member(pair: list[str] | None) -> Member | None:
    return Member(*pair) if pair else None
