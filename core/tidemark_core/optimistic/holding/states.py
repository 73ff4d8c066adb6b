"""States: the stored standing of a member, as JSON."""

from __future__ import annotations

import json

from ...base.errors import RemoteViolation
from ...base.ids import Member
from ..records import of_json, to_json
from ..standing import Standing

FORMAT = 1


def encode_standing(standing: Standing) -> bytes:
    """Return the bytes of a standing."""
    return json.dumps({
        "format": FORMAT,
        "me": list(standing.me),
        "record": to_json(standing.record),
        "promise_ms": standing.promise_ms,
        "copying": standing.copying,
        "withdrawn": standing.withdrawn,
        "exchanged": [[*member, ms] for member, ms in standing.exchanged],
    }).encode()


def decode_standing(data: bytes) -> Standing:
    """Read `encode_standing`; raises RemoteViolation when it is damaged, or of a format that is not known."""
    try:
        state = json.loads(data)
        if state["format"] != FORMAT:
            raise RemoteViolation(f"a standing of format {state['format']} is not known")
        return Standing(
            Member(*state["me"]), of_json(state["record"]), state["promise_ms"], state["copying"],
            state["withdrawn"],
            tuple((Member(node, life), int(ms)) for node, life, ms in state.get("exchanged", ())),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteViolation(f"a stored standing is damaged: {error}") from error

