"""`tidemark tail`: the last records of each shard, and with --follow whatever comes behind them.

Stays out: how records look (records).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Annotated

import tidemark
import typer
from tidemark import Gap, GapKind, Record
from tidemark.options import ReadOptions

from . import target
from .failures import OK
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
from .output import note
from .records import Writer, copy, finish, form_of, show_stats
from .subscriptions import LeaseOption, SubscriptionOption, options_of

LAST_MAX = 100_000


async def last_records(
    client: tidemark.Client, group: str, shard: int, end: int, count: int, options: ReadOptions
) -> Sequence[Record]:
    """Return the last `count` records of a shard up to offset `end`, fewer when there are no more.

    Control entries and rolled-back records take offsets too, so the first look may find too few.
    """
    found: deque[Record] = deque(maxlen=count)
    undecodable: dict[int, Gap] = {}
    span = 2 * count
    while count and end >= 0:
        first = max(0, end - span + 1)
        found.clear()
        trimmed = False
        reading: ReadOptions = {**options, "shards": [shard], "from_": first, "until": end}
        async for item in client.read(group, gaps=True, **reading):
            if isinstance(item, Gap):
                trimmed = trimmed or item.kind is GapKind.TRIM
                if item.kind is GapKind.UNDECODABLE:
                    undecodable[item.first] = item
            else:
                found.append(item)
        if len(found) == count or first == 0 or trimmed:
            break
        span *= 4
    for gap in undecodable.values():
        note(f"{gap.kind}: shard {gap.shard}, offsets {gap.first} to {gap.last}")
    return found


def tail(
    group: GroupArgument,
    last: Annotated[
        int, typer.Option("--last", "-n", min=0, max=LAST_MAX, help="So many of the last records of each shard.")
    ] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes later, until Ctrl-C.")] = False,
    shards: ShardsOption = None,
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
    """Read the last records of each shard of GROUP, and with --follow what comes behind them.

    With --subscription the last records are those behind where it stands; where there is none yet, the last --last.
    """
    form = form_of(as_json, as_jsonl)
    if as_json and follow:
        raise typer.BadParameter("a tail has no end, so it is no JSON document; use --jsonl", param_hint="--json")
    named = options_of(subscription, lease)
    if stats and not (follow or named):
        raise typer.BadParameter("counts what --follow reads, and goes with it", param_hint="--stats")
    writer = Writer(form=form, keys=keys)
    options: ReadOptions = {"timeout_s": timeout_s, "location": location}
    if mode is not None:
        options["mode"] = mode.value
    if skip_undecodable:
        options["undecodable"] = "skip"

    async def write_last(client: tidemark.Client, wanted: Sequence[int], positions: dict[int, int]) -> None:
        for shard in wanted:
            end = await client.latest(group, shard, timeout_s=timeout_s)
            positions[shard] = end + 1
            for record in await last_records(client, group, shard, end, last, options):
                if named:
                    positions[shard] = record.offset  # written when it is read under the name
                    break
                writer.write(record)
        writer.flush()

    async def main() -> int:
        async with await target.connect(state, cluster) as client:
            found = await client.group(group)
            wanted = sorted(found.shards) if shards is None else list(dict.fromkeys(shards))
            positions: dict[int, int] = {}
            if code := await until_interrupted(write_last(client, wanted, positions)):
                return code
            if not (follow or named):
                return OK
            until = None if follow else tidemark.LATEST
            reading: ReadOptions = {**options, **named, "shards": wanted, "from_": positions, "until": until}
            reader = client.read(group, gaps=gaps, **reading)
            try:
                return await until_interrupted(copy(reader, writer, limit=None, live=True))
            finally:
                await reader.close()
                if skip_undecodable:
                    writer.passed_over(reader)
                if stats:
                    show_stats(reader.stats, form)

    finish(main(), writer)
