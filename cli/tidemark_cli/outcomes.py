"""`tidemark outcome`: what became of one batch, by its producer and sequence.

Stays out: following leaders (client).
"""

from __future__ import annotations

from typing import Annotated, Any

import tidemark
import typer
from tidemark import Fate, Outcome

from . import target
from .options import DEFAULT_DIR, ClusterOption, DirOption, GroupArgument, JsonOption, ShardArgument, TimeoutOption
from .output import emit, note, table

MEANING = {
    Fate.CONFIRMED: "It is in the log for good, and readers see it.",
    Fate.ROLLED_BACK: "It is in nobody's log and never will be: append it again if you still want it.",
    Fate.UNKNOWN: "It is in the leader's log and not decided: it may still be confirmed or rolled back.",
    Fate.NOT_FOUND: "The leader's log does not have it now. That is no verdict: only its own writer, sending the same "
                    "sequence again, can settle it.",
}


def producer_of(text: str) -> bytes:
    """Return the producer id that 32 hex digits stand for."""
    try:
        producer = bytes.fromhex(text)
    except ValueError:
        producer = b""
    if len(producer) != 16:
        raise typer.BadParameter(f"{text!r} is not 32 hex digits", param_hint="PRODUCER_HEX")
    return producer


def document_of(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain data; what it does not say is null."""
    found = outcome.fate is not Fate.NOT_FOUND
    return {
        "fate": str(outcome.fate), "epoch": outcome.epoch, "first": outcome.base if found else None,
        "count": outcome.count, "rolled_back_at": outcome.rolled_back_at if outcome.rolled_back_at >= 0 else None,
    }


def outcome(
    group: GroupArgument,
    shard: ShardArgument,
    producer: Annotated[str, typer.Argument(metavar="PRODUCER_HEX", help="Id of the producer, 32 hex digits.")],
    sequence: Annotated[int, typer.Argument(metavar="SEQUENCE", min=0, help="Sequence of the batch.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is decided, at most --timeout.")] = False,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what became of a batch: CONFIRMED, ROLLED_BACK, UNKNOWN or NOT_FOUND."""
    producer_id = producer_of(producer)

    async def main() -> Outcome:
        async with await target.connect(state, cluster) as client:
            return await client.outcome(group, shard, producer_id, sequence, wait=wait, timeout_s=timeout_s)

    found = tidemark.run(main())
    document = {
        "group": group, "shard": shard, "producer": producer_id.hex(), "sequence": sequence, **document_of(found)
    }

    def render() -> Any:
        shown = {**document, "first": "" if document["first"] is None else document["first"]}
        at = document["rolled_back_at"]
        return table(
            ["GROUP", "#SHARD", "#SEQUENCE", "FATE", "#EPOCH", "#FIRST", "#RECORDS", "#ROLLBACK"],
            [[group, shard, sequence, document["fate"], document["epoch"], shown["first"], document["count"],
              "" if at is None else at]],
        )

    emit(as_json, document, render)
    note(MEANING[found.fate])
