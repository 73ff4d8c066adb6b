"""Outcomes of appends and the view of a limbo, to protobuf and back.

Stays out: what an outcome is and who may be asked for it.
"""

from __future__ import annotations

from typing import Any

from tidemark_core.base.entry import Durability
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.limbo.view import LOCAL, ROLLING_BACK, WAITING, LimboEntry, LimboView
from tidemark_core.replication.messages import Fate, Outcome

from .v1 import node_pb2

ENTRIES_MAX = 10_000
"""Most entries of a limbo that one answer lists."""

_STATES = frozenset((WAITING, LOCAL, ROLLING_BACK))
_DURABILITIES = {durability.name.capitalize(): durability for durability in Durability}


def outcome_to_proto(outcome: Outcome) -> node_pb2.OutcomeResponse:
    return node_pb2.OutcomeResponse(
        fate=outcome.fate, epoch=outcome.epoch, base=outcome.base, count=outcome.count,
        rolled_back_at=outcome.rolled_back_at,
    )


def outcome_from_proto(proto: node_pb2.OutcomeResponse) -> Outcome:
    """Raises RemoteViolation for a fate that this build does not know."""
    try:
        fate = Fate(proto.fate)
    except ValueError as error:
        raise RemoteViolation(f"fate {proto.fate!r} is not known to this build") from error
    return Outcome(fate, proto.epoch, proto.base, proto.count, proto.rolled_back_at)


_PLAIN = (
    "epoch", "head", "commit", "confirmed", "quorum", "zones", "length", "bytes", "oldest_age_ms", "rollbacks_total",
    "timeouts_total", "rollback_pending_from", "timeout_ms",
)
_PLAIN_OF_ENTRY = ("base", "count", "bytes", "age_ms", "state", "waiters", "producer", "sequence")


def limbo_to_proto(view: LimboView) -> node_pb2.LimboResponse:
    return node_pb2.LimboResponse(
        **_fields(view, _PLAIN), members=view.members, entries=[_entry_to_proto(entry) for entry in view.entries]
    )


def limbo_from_proto(proto: node_pb2.LimboResponse) -> LimboView:
    """Raises RemoteViolation for what this build does not know, or too much of it."""
    if len(proto.entries) > ENTRIES_MAX:
        raise RemoteViolation(f"{len(proto.entries)} entries of a limbo, the limit is {ENTRIES_MAX}")
    return LimboView(
        **_fields(proto, _PLAIN), members=tuple(proto.members),
        entries=tuple(_entry_from_proto(entry) for entry in proto.entries),
    )


def durability_text(durability: Durability) -> str:
    """Return the word for people and manifests: Quorum, Local or Commit."""
    return durability.name.capitalize()


def _fields(source: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _entry_to_proto(entry: LimboEntry) -> node_pb2.LimboEntry:
    return node_pb2.LimboEntry(
        **_fields(entry, _PLAIN_OF_ENTRY), durability=durability_text(entry.durability), acked=entry.acked,
        missing=entry.missing,
    )


def _entry_from_proto(proto: node_pb2.LimboEntry) -> LimboEntry:
    if proto.durability not in _DURABILITIES:
        raise RemoteViolation(f"durability {proto.durability!r} is not known to this build")
    if proto.state not in _STATES:
        raise RemoteViolation(f"state {proto.state!r} of a limbo entry is not known to this build")
    return LimboEntry(
        **_fields(proto, _PLAIN_OF_ENTRY), durability=_DURABILITIES[proto.durability], acked=tuple(proto.acked),
        missing=tuple(proto.missing),
    )
