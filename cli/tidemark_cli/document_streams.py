"""`tidemark changes`, `barrier` and `failover-log`: what changes in a group of documents, and where its history stands.

`changes` writes a row only once its snapshot is whole, and a position behind each: with --from it goes on there.
Stays out: members and failovers (client), the commands that change a cluster (changes).
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import tidemark
import typer
from tidemark import Change, Discarded, Rebuilding, ShardDocuments, SnapshotEnd

from . import output, target
from .failures import describe
from .interrupts import until_interrupted
from .options import DEFAULT_DIR, ClusterOption, DirOption, GroupArgument, JsonOption, TimeoutOption
from .output import emit, fail, note, table
from .reads import start_of
from .records import text_or_base64

PLAIN_FROM = (tidemark.BEGINNING, tidemark.NOW)


def _start(text: str) -> Any:
    if text in PLAIN_FROM or text.startswith("tmc"):
        return text
    if text.isdecimal():
        raise typer.BadParameter(
            f"{text!r} is neither 'beginning', 'now', a position nor a time", param_hint="--from")
    return start_of(text)


def change_document(change: Change) -> dict[str, Any]:
    """Return a change as plain data."""
    value = text_or_base64("value", change.value) if not change.deleted else {}
    return {
        "shard": change.shard, "seqno": change.seqno, "op": change.op.name, **text_or_base64("key", change.key),
        **value, "expires_at_ms": change.expires_at_ms or None,
    }


def changes(
    group: GroupArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with later changes, until Ctrl-C.")] = False,
    from_: Annotated[
        str, typer.Option("--from", metavar="beginning|now|POSITION|TIME", help="Where to begin.")
    ] = tidemark.BEGINNING,
    prefix: Annotated[
        list[str] | None, typer.Option("--prefix", help="Only keys that begin so; again for more.")
    ] = None,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Leave values out.")] = False,
    consumer: Annotated[
        str | None, typer.Option("--consumer", metavar="NAME", help="Go on where the consumer of this name stands.")
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Begin again where deletes were purged or history is lost.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after so many changes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object per line, positions too.")] = False,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
) -> None:
    """Show the changes of GROUP: first its documents as they are, and with --follow what comes later."""
    start = _start(from_)

    async def main() -> int:
        async with await target.connect(state, cluster) as client:
            ends = None if follow else (await client.barrier(group, timeout_s=timeout_s)).seqnos
            stream = client.changes(
                group, from_=start, prefix=prefix or None, values=not keys_only, consumer=consumer,
                on_lost="rebuild" if rebuild else "fail", timeout_s=timeout_s,
            )
            async with stream:
                interrupted = await until_interrupted(_copy(stream, ends, limit, as_json))
                if interrupted:
                    _say_position(stream, as_json)   # of what is written: a snapshot under way comes again
                return interrupted

    try:
        interrupted = tidemark.run(main())
    except Exception as error:
        failure = describe(error)
        if failure is None or not as_json:
            raise
        _line({"error": failure.reason, "message": failure.message, "advice": failure.advice})
        sys.stdout.flush()
        fail(failure.message, failure.advice)
        raise typer.Exit(failure.code) from None
    if interrupted:
        raise typer.Exit(interrupted)


async def _copy(stream: tidemark.Changes, ends: dict[int, int] | None, limit: int | None, as_json: bool) -> None:
    """Write snapshots until every shard has reached its end, or the limit."""
    await stream.open()
    left = None
    if ends is not None:
        left = {shard: end for shard, end in ends.items() if stream.positions[shard] < end}
    written = 0
    staged: dict[int, list[Change]] = {}
    if left == {}:
        return await _finished(stream, as_json)
    async for event in stream:
        match event:
            case Change():
                staged.setdefault(event.shard, []).append(event)
                continue
            case Rebuilding():
                note(f"shard {event.shard} begins again: {event.reason}")
                staged.pop(event.shard, None)
            case SnapshotEnd():
                changes = staged.pop(event.shard, [])
                shown = changes if limit is None else changes[:limit - written]
                for change in shown:
                    _show(change, as_json)
                written += len(shown)
                if len(shown) < len(changes):
                    return _say(await stream.ack_rows({event.shard: shown[-1].seqno}), as_json)
                if written == limit:
                    return await _finished(stream, as_json)
                if as_json:
                    _line({"shard": event.shard, "end": event.seqno})
                sys.stdout.flush()
            case Discarded():
                staged.pop(event.shard, None)
        if left is not None and getattr(event, "seqno", -1) >= left.get(event.shard, 0):
            left.pop(event.shard, None)
            if not left:
                return await _finished(stream, as_json)


async def _finished(stream: tidemark.Changes, as_json: bool) -> None:
    """Say from where to go on."""
    await stream.ack()
    _say_position(stream, as_json)


def _say_position(stream: tidemark.Changes, as_json: bool) -> None:
    if not stream.positions:
        note("interrupted before the stream began")
        if as_json:
            _line({"error": "INTERRUPTED", "message": "interrupted before the stream began", "advice": ""})
        sys.stdout.flush()
    else:
        _say(stream.position, as_json)


def _say(position: str, as_json: bool) -> None:
    if as_json:
        _line({"position": position})
    else:
        note(f"position {position}")
    sys.stdout.flush()


def _line(document: dict[str, Any]) -> None:
    output.writing()
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")


def _show(change: Change, as_json: bool) -> None:
    if as_json:
        _line(change_document(change))
        return
    key = change.key.decode(errors="backslashreplace")
    value = "" if change.deleted else "\t" + change.value.decode(errors="backslashreplace")
    sys.stdout.write(f"{change.shard}/{change.seqno}\t{change.op.name}\t{key}{value}\n")


def barrier(
    group: GroupArgument,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say up to where GROUP is confirmed now, on every shard: a consumer that has this has everything."""

    async def main() -> tidemark.Vector:
        async with await target.connect(state, cluster) as client:
            return await client.barrier(group, timeout_s=timeout_s)

    vector = tidemark.run(main())
    shards = [{"shard": shard, "seqno": seqno} for shard, seqno in sorted(vector.seqnos.items())]
    emit(as_json, {"group": group, "position": vector.position, "shards": shards}, lambda: table(
        ["#SHARD", "#SEQNO"], [[each["shard"], each["seqno"]] for each in shards], title=vector.position))


def failover_log(
    group: GroupArgument,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which epoch wrote which seqnos of GROUP: the newest 25 elections of every shard."""

    async def main() -> dict[int, ShardDocuments]:
        async with await target.connect(state, cluster) as client:
            return await client.documents(group, timeout_s=timeout_s).describe()

    found = tidemark.run(main())
    rows = [
        {"shard": shard, "epoch": each.epoch, "inherited_head": each.head, "history": each.history.hex(),
         "lineage": each.lineage.hex()}
        for shard, described in sorted(found.items()) for each in described.failover_log
    ]
    emit(as_json, {"group": group, "entries": rows}, lambda: table(
        ["#SHARD", "#EPOCH", "#INHERITED HEAD", "HISTORY", "LINEAGE"], [list(row.values()) for row in rows]))
