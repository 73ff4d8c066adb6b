"""`tidemark read`: records of a log group to standard output.

Stays out: how records look (records), members, leaders and failovers (client).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import tidemark
import typer
from tidemark.options import ReadOptions

from . import target
from .interrupts import until_interrupted
from .options import (
    DEFAULT_DIR,
    ClusterOption,
    DirOption,
    GapsOption,
    GroupArgument,
    JsonOption,
    KeysOption,
    LocationOption,
    ModeOption,
    ShardsOption,
    SkipUndecodableOption,
    StatsOption,
    TimeoutOption,
)
from .records import Writer, copy, finish, form_of, show_stats
from .subscriptions import LeaseOption, SubscriptionOption, options_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OFFSET_MAX = (1 << 62) - 1
OFFSET_DIGITS_MAX = 19


def start_of(text: str) -> int | str | datetime:
    """Return `earliest`, `latest`, an offset or a time."""
    if text in (tidemark.EARLIEST, tidemark.LATEST):
        return text
    if text.isdecimal():
        return offset_of(text, "--from")
    try:
        time = datetime.fromisoformat(text)
        time = time if time.tzinfo is not None else time.astimezone()  # what stands on the clock here
        time.timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is neither 'earliest' nor 'latest' nor an offset nor a time such as 2026-01-31T12:00:00+00:00",
            param_hint="--from",
        ) from None
    return max(time, EPOCH)  # nothing was logged before


def offset_of(text: str, option: str) -> int:
    """Return an offset; raises BadParameter when no log is as long."""
    if len(text) > OFFSET_DIGITS_MAX or int(text) > OFFSET_MAX:
        shown = text if len(text) <= OFFSET_DIGITS_MAX else f"a number of {len(text)} digits"
        raise typer.BadParameter(f"{shown} is more than the last offset that a log can have", param_hint=option)
    return int(text)


def end_of(text: str) -> int | str:
    """Return `latest` or an offset."""
    if text == tidemark.LATEST:
        return text
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither 'latest' nor an offset", param_hint="--until")
    return offset_of(text, "--until")


async def starts_of(
    client: tidemark.Client, group: str, shards: list[int] | None, start: int | str | datetime, timeout_s: float
) -> int | str | dict[int, int]:
    """Return where to begin: for a time an offset per shard."""
    if not isinstance(start, datetime):
        return start
    wanted = sorted((await client.group(group)).shards) if shards is None else shards
    return {shard: await client.offset_at(group, shard, start, timeout_s=timeout_s) for shard in wanted}


def read(
    group: GroupArgument,
    from_: Annotated[
        str,
        typer.Option(
            "--from", metavar="OFFSET|TIME|earliest|latest",
            help="First offset wanted, or what was logged from a time on.",
        ),
    ] = "earliest",
    until: Annotated[str, typer.Option("--until", metavar="OFFSET|latest", help="Last offset wanted.")] = "latest",
    tail: Annotated[bool, typer.Option("--tail", help="Go on with what is appended later, until Ctrl-C.")] = False,
    shards: ShardsOption = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after so many records.")] = None,
    keys: KeysOption = False,
    gaps: GapsOption = False,
    skip_undecodable: SkipUndecodableOption = False,
    mode: ModeOption = None,
    location: LocationOption = None,
    subscription: SubscriptionOption = None,
    lease: LeaseOption = None,
    stats: StatsOption = False,
    as_json: JsonOption = False,
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="Write one JSON object per record and line.")] = False,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
) -> None:
    """Read the records of GROUP, each shard in its order."""
    form = form_of(as_json, as_jsonl)
    if as_json and tail and limit is None:
        raise typer.BadParameter("a tail has no end, so it is no JSON document; use --jsonl", param_hint="--json")
    start, end = start_of(from_), None if tail else end_of(until)
    writer = Writer(form=form, keys=keys)
    named = options_of(subscription, lease)

    async def main() -> int:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            starts = await starts_of(client, group, shards, start, timeout_s)
            options: ReadOptions = {
                **named, "shards": shards, "from_": starts, "until": end, "timeout_s": timeout_s, "location": location,
            }
            if mode is not None:
                options["mode"] = mode.value
            if skip_undecodable:
                options["undecodable"] = "skip"
            reader = client.read(group, gaps=gaps, **options)
            try:
                return await until_interrupted(copy(reader, writer, limit=limit, live=tail))
            finally:
                await reader.close()
                if skip_undecodable:
                    writer.passed_over(reader)
                if stats:
                    writer.flush()
                    show_stats(reader.stats, form)

    finish(main(), writer)
