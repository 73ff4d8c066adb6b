"""States: the stored standing of a member, as JSON."""

from __future__ import annotations

import json
from typing import Any

from ...base.errors import RemoteViolation
from ...base.ids import Member
from ..ring import Owners, Quorum, Range
from ..standing import Standing

FORMAT = 1


def encode_standing(standing: Standing) -> bytes:
    """Return the bytes of a standing."""
    return json.dumps({
        "format": FORMAT,
        "me": list(standing.me),
        "record": _of_record(standing.record),
        "promise_ms": standing.promise_ms,
        "copying": standing.copying,
        "withdrawn": standing.withdrawn,
    }).encode()


def decode_standing(data: bytes) -> Standing:
    """Read `encode_standing`; raises RemoteViolation when it is damaged, or of a format that is not known."""
    try:
        state = json.loads(data)
        if state["format"] != FORMAT:
            raise RemoteViolation(f"a standing of format {state['format']} is not known")
        return Standing(
            Member(*state["me"]), _to_record(state["record"]), state["promise_ms"], state["copying"],
            state["withdrawn"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteViolation(f"a stored standing is damaged: {error}") from error


def _of_record(record: Range) -> dict[str, Any]:
    return {
        "version": record.version,
        "own": _of_owners(record.own),
        "pending": _of_owners(record.pending) if record.pending is not None else None,
        "floor_ms": record.floor_ms,
    }


def _to_record(state: dict[str, Any]) -> Range:
    pending = state["pending"]
    return Range(
        state["version"], _to_owners(state["own"]), _to_owners(pending) if pending is not None else None,
        state["floor_ms"],
    )


def _of_owners(owners: Owners) -> dict[str, Any]:
    return {"members": [list(member) for member in owners.members], "quorum": list(owners.quorum)}


def _to_owners(state: dict[str, Any]) -> Owners:
    return Owners(tuple(Member(*member) for member in state["members"]), Quorum(*state["quorum"]))
