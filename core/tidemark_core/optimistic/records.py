"""Records: the record of a range as the metadata store and the disks of members hold it.

Stays out: changes of a record (`ring`), which of two is the newer one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..base.errors import RemoteViolation, unknown_record_format
from ..base.ids import Member
from .ring import Owners, Quorum, Range

RECORD_FORMAT = 1


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """The record of a range in the metadata store.  `writer` names the write that stored it."""

    range: Range
    writer: str = ""

    def encode(self) -> bytes:
        """Return the bytes of a record."""
        raw = {"format": RECORD_FORMAT, "writer": self.writer, "range": to_json(self.range)}
        return json.dumps(raw, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> RangeRecord:
        """Read `encode`; raises FormatTooNew where a newer release wrote it, RemoteViolation where it is damaged."""
        try:
            raw = json.loads(data)
            if raw["format"] != RECORD_FORMAT:
                raise unknown_record_format("record of a range", raw["format"], RECORD_FORMAT)
            return cls(of_json(raw["range"]), str(raw["writer"]))
        except (ValueError, KeyError, TypeError) as error:
            raise RemoteViolation(f"the record of a range cannot be read: {error!r}") from error


def to_json(record: Range) -> dict[str, Any]:
    """Return a range as a JSON object."""
    return {
        "version": record.version,
        "own": _of_owners(record.own),
        "pending": _of_owners(record.pending) if record.pending is not None else None,
        "floor_ms": record.floor_ms,
    }


def of_json(state: dict[str, Any]) -> Range:
    """Read `to_json`; raises KeyError, TypeError or ValueError where a field is missing or of another shape."""
    pending = state["pending"]
    return Range(
        int(state["version"]), _to_owners(state["own"]), _to_owners(pending) if pending is not None else None,
        int(state["floor_ms"]),
    )


def _of_owners(owners: Owners) -> dict[str, Any]:
    return {"members": [list(member) for member in owners.members], "quorum": list(owners.quorum)}


def _to_owners(state: dict[str, Any]) -> Owners:
    return Owners(tuple(Member(*member) for member in state["members"]), Quorum(*state["quorum"]))
