"""What the operator keeps in the metadata store, one record a shard, and the words to read and write it.

Every write is a transaction on the record's revision (H2, 8.6).  The election id of an epoch is the revision
that the transaction allocating the epoch was conditioned on: only one transaction can win it, so it is
unique, and it is known before the transaction is sent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..base.errors import RemoteViolation, unknown_record_format
from ..base.ids import NOTHING, EntryId, Member, OperatorId, ShardId, ShardKind, lineage_of
from .messages import Operation

RECORD_FORMAT = 2
DOCUMENTS_FORMAT = 3
"""Of a record that names kind or lineage: the release before would write it again without them (U54b)."""
QUORUM_SILENCE_MS = 3_000


class Status(StrEnum):
    STEADY = "STEADY"
    ELECTION = "ELECTION"
    RECONFIGURATION = "RECONFIGURATION"


class Phase(StrEnum):
    PREPARE = "PREPARE"
    COMMIT = "COMMIT"


@dataclass(frozen=True, slots=True)
class Change:
    """An ensemble change under way (O30, O33).  `new_head`: what the new member holds durably, known from COMMIT on.

    `copies` is as it will be after the change.
    """

    operation: Operation
    phase: Phase
    old: Member | None
    new: Member | None
    new_head: EntryId = NOTHING
    copies: int = 0


@dataclass(frozen=True, slots=True)
class Holdout:
    """A member that refused to cut its log below its `commit`: it holds acknowledged records that others lack (K14c).
    """

    member: Member
    commit: int


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """Metadata of one shard; the replication factor is `len(ensemble)` and is never stored apart (H4).

    `copies` members of them keep each payload, 0: all (K2).
    `removed` are members that left and whose replica is still to be deleted.  `writer` names the attempt
    that wrote this version, so that a transaction of unknown outcome can be read back and recognised.
    `holdouts` are members whose copies may be the last of acknowledged records (K14c).  `source` is the member that an
    election makes the shard's only one, None in any other (K14d); `refill` is how many members the shard had then and
    is to have again, 0 when it has them.  `lineage` names the shard's history, 32 hexadecimal digits, empty where the
    kind of shard has none (U54).
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
    holdouts: tuple[Holdout, ...] = ()
    source: Member | None = None
    refill: int = 0
    lineage: str = ""
    kind: ShardKind = ShardKind.LOG

    def encode(self) -> bytes:
        change = self.change
        rare = {   # left out where they say nothing: the release before does not know them
            "holdouts": [[*each.member, each.commit] for each in self.holdouts],
            "source": list(self.source) if self.source else None,
            "refill": self.refill,
            "lineage": self.lineage,
            "kind": self.kind if self.kind is not ShardKind.LOG else None,
        }
        return json.dumps(
            {
                "format": DOCUMENTS_FORMAT if rare["kind"] or self.lineage else RECORD_FORMAT,
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
                **{name: value for name, value in rare.items() if value},
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> ShardRecord:
        """Read a stored record; raises RemoteViolation if it is damaged, FormatTooNew if a newer release wrote it."""
        try:
            raw: dict[str, Any] = json.loads(data)
            if raw["format"] not in (RECORD_FORMAT, DOCUMENTS_FORMAT):
                raise unknown_record_format("shard record", raw["format"], DOCUMENTS_FORMAT)
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
                holdouts=tuple(Holdout(Member(*pair), int(commit)) for *pair, commit in raw.get("holdouts", ())),
                source=_member(raw.get("source")),
                refill=int(raw.get("refill", 0)),
                lineage=lineage_of(raw.get("lineage", "")).hex(),
                kind=ShardKind(raw.get("kind", ShardKind.LOG)),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RemoteViolation(f"shard record cannot be read: {error!r}") from error


def _member(pair: list[str] | None) -> Member | None:
    return Member(*pair) if pair else None


def first_record(
    ensemble: tuple[Member, ...], copies: int = 0, lineage: bytes = b"", kind: ShardKind = ShardKind.LOG
) -> ShardRecord:
    """Return the record of a shard that was never led: epoch 0, waiting for its first election."""
    return ShardRecord(
        epoch=0, election=0, status=Status.ELECTION, ensemble=ensemble, copies=copies, lineage=lineage.hex(), kind=kind
    )


# --- requests of the coordinator -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartChange:
    """Run an ensemble change; answered by Reply(request, ChangeDone | Refused).

    `new_node` is a node id that must be up; `old_node` a node of the ensemble (SWAP, CONTRACT).  A SWAP with
    `new_node` equal to `old_node` re-seeds a node with a new disk into its own slot (K14).  COPIES names no node: from
    then on `copies` members keep each payload, 0: all.  `abandon` lets a member leave that may hold the last copy of
    acknowledged records (K14c).
    """

    shard: ShardId
    request: int
    operation: Operation
    old_node: str | None
    new_node: str | None
    force: bool = False
    copies: int = 0
    abandon: bool = False


@dataclass(frozen=True, slots=True)
class RecoverShard:
    """Make the copy of a holdout the shard's log; the others' are replaced (K14d).

    With `accept_loss` that of a member which is left where a majority of the disks is lost (K14e).  It may lose
    confirmed entries, so the shard gets the new `lineage`; one without a lineage gets none (U54).
    Answered by Reply(request, ChangeDone | Refused).
    """

    shard: ShardId
    request: int
    from_node: str
    lineage: bytes = field(default=b"", compare=False)
    accept_loss: bool = False


@dataclass(frozen=True, slots=True)
class StartTransfer:
    """Hand leadership to a member; answered by Reply(request, ChangeDone | Refused)."""

    shard: ShardId
    request: int
    to_node: str


@dataclass(frozen=True, slots=True)
class CancelChange:
    """Abort the running change while it is in PREPARE; answered by Reply(request, ChangeDone | Refused)."""

    shard: ShardId
    request: int


@dataclass(frozen=True, slots=True)
class ChangeDone:
    """The change is complete and stored."""

    epoch: int
    ensemble: tuple[Member, ...]
    leader: Member | None
    copies: int = 0


@dataclass(frozen=True, slots=True)
class ChangeProgress:
    """Effect: how far the change of `request` is; stage is PREPARE, SNAPSHOT, COMMIT or TRANSFER."""

    shard: ShardId
    request: int
    stage: str
    received_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Times in milliseconds.

    `retry_ms`: resend of what was not answered.  `grace_ms`: after a fencing quorum, how long to wait for more
    answers of nodes believed up.  `takeover_ms`: how long another operator's election may stand still before
    this one takes over.  `change_timeout_ms`: a change without progress in PREPARE is aborted.
    `quorum_silence_ms`: how long a leader may reach no majority of its ensemble while another member does (O44).
    """

    operator: OperatorId
    retry_ms: int = 500
    grace_ms: int = 30
    takeover_ms: int = 3_000
    change_timeout_ms: int = 30_000
    quorum_silence_ms: int = QUORUM_SILENCE_MS
