"""`tidemark limbo`: what is appended to a group and not yet confirmed, shard by shard: who waits for whom.

Each shard's leader is asked; a shard that nobody answers for says why and holds the others up no longer than
--timeout.  With --watch the picture is drawn again every --interval seconds.
Stays out: deciding anything; leaders do.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import tidemark
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text
from tidemark import LimboEntry, LimboView, TidemarkError

from . import target
from .failures import FAILED, OK, describe
from .interrupts import until_interrupted
from .options import DEFAULT_DIR, ClusterOption, DirOption, GroupArgument, JsonOption, TimeoutOption, finite
from .output import emit, fail, show, stdout, table

WATCHED_TIMEOUT_S = 2.0  # a shard without an answer does not hold the picture up for longer

Look = LimboView | TidemarkError


async def look(client: tidemark.Client, group: str, shards: list[int], entries: int, timeout_s: float) -> list[Look]:
    """Ask the leader of each shard; an error of one is its answer."""
    async def one(shard: int) -> Look:
        try:
            return await client.limbo(group, shard, entries_max=entries, timeout_s=timeout_s)
        except TidemarkError as error:
            return error

    return list(await asyncio.gather(*(one(shard) for shard in shards)))


# --- for programs


def _entry_document(entry: LimboEntry) -> dict[str, Any]:
    return {
        "first": entry.base, "last": entry.base + entry.count - 1, "count": entry.count, "bytes": entry.bytes,
        "age_ms": entry.age_ms, "durability": entry.durability.name, "state": entry.state, "waiters": entry.waiters,
        "acked": list(entry.acked), "missing": list(entry.missing), "producer": entry.producer.hex(),
        "sequence": entry.sequence,
    }


def document_of(shard: int, seen: Look) -> dict[str, Any]:
    """Return one shard's limbo, or why it is not known, as plain data."""
    if isinstance(seen, TidemarkError):
        return {"shard": shard, "error": seen.reason, "message": seen.message, "advice": seen.advice}
    return {
        "shard": shard, "epoch": seen.epoch, "head": seen.head, "commit": seen.commit, "confirmed": seen.confirmed,
        "members": list(seen.members), "quorum": seen.quorum, "zones": seen.zones, "length": seen.length,
        "bytes": seen.bytes, "oldest_age_ms": seen.oldest_age_ms, "timeout_ms": seen.timeout_ms,
        "rollbacks_total": seen.rollbacks_total, "timeouts_total": seen.timeouts_total,
        "rollback_pending_from": seen.rollback_pending_from if seen.rollback_pending_from >= 0 else None,
        "entries": [_entry_document(entry) for entry in seen.entries],
    }


# --- for people


def headline(group: str, shard: int, view: LimboView) -> str:
    """Return the line above a shard's table."""
    parts = [
        f"{group}/{shard}", f"epoch {view.epoch}",
        f"confirmed {view.confirmed} · commit {view.commit} · head {view.head}",
        f"quorum {view.quorum} of {len(view.members)}",
    ]
    if view.zones:
        parts.append(f"from {view.zones} zones")
    if view.length:
        parts.append(f"oldest {seconds(view.oldest_age_ms)} of {seconds(view.timeout_ms)}")
    parts.append(f"rollbacks {view.rollbacks_total}, timeouts {view.timeouts_total}")
    if view.rollback_pending_from >= 0:
        parts.append(f"rolling back from {view.rollback_pending_from}")
    return "  ".join(parts)


def seconds(milliseconds: int) -> str:
    """Return a span as people read it."""
    return f"{milliseconds / 1000:.1f} s"


def _row(entry: LimboEntry) -> list[object]:
    last = entry.base + entry.count - 1
    offsets = str(entry.base) if last == entry.base else f"{entry.base}-{last}"
    return [
        offsets, seconds(entry.age_ms), entry.durability.name, entry.state, ", ".join(entry.acked) or "-",
        ", ".join(entry.missing) or "-", entry.waiters,
    ]


def render(group: str, shards: list[int], seen: list[Look]) -> RenderableType:
    """Return the picture of all shards."""
    parts: list[RenderableType] = []
    for shard, view in zip(shards, seen, strict=True):
        if isinstance(view, TidemarkError):
            parts.append(Text(f"{group}/{shard}  {view}", style="red"))
            continue
        parts.append(Text(headline(group, shard, view), style="bold"))
        if not view.length:
            parts.append(Text("  the limbo is empty: nobody waits for anybody", style="dim"))
            continue
        if view.entries:
            rows = table(
                ["#OFFSETS", "#AGE", "DURABILITY", "STATE", "ACKED BY", "MISSING", "#WAITERS"],
                map(_row, view.entries),
            )
            parts.append(Padding(rows, (0, 0, 0, 2)))
        if view.length > len(view.entries):
            parts.append(Text(f"  {view.length - len(view.entries)} newer ones are not shown", style="dim"))
    return Group(*parts)


# --- the command


def limbo(
    group: GroupArgument,
    shard: Annotated[int | None, typer.Option("--shard", min=0, help="Only this shard.")] = None,
    entries: Annotated[
        int, typer.Option("--entries", min=0, max=10_000, help="Show so many of the oldest entries of a shard.")
    ] = 10,
    watch: Annotated[bool, typer.Option("--watch", help="Draw it again and again, until Ctrl-C.")] = False,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval", min=0.1, max=86_400, callback=finite, metavar="SECONDS", help="With --watch: how often."),
    ] = 1.0,
    timeout_s: TimeoutOption = 10.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is appended and not yet confirmed: who waits for whom."""
    if watch and as_json:
        raise typer.BadParameter("a watch has no end, so it is no JSON document", param_hint="--json")
    shards: list[int] = []

    async def open_shards(client: tidemark.Client) -> None:
        found = await client.group(group)
        shards.extend(sorted(found.shards) if shard is None else [client.routing.check_shard(found, shard)])

    async def once() -> list[Look]:
        async with await target.connect(state, cluster) as client:
            await open_shards(client)
            return await look(client, group, shards, entries, timeout_s)

    async def follow() -> None:
        async with await target.connect(state, cluster) as client:
            await open_shards(client)
            with Live(console=stdout, auto_refresh=False) as live:
                while True:
                    seen = await look(client, group, shards, entries, min(timeout_s, WATCHED_TIMEOUT_S))
                    picture = render(group, shards, seen)
                    if stdout.is_terminal:
                        live.update(picture, refresh=True)
                    else:
                        show(picture)
                    await asyncio.sleep(interval_s)

    if watch:
        raise typer.Exit(tidemark.run(until_interrupted(follow())))
    seen = tidemark.run(once())
    document = {
        "group": group,
        "shards": [document_of(number, view) for number, view in zip(shards, seen, strict=True)],
    }
    emit(as_json, document, lambda: render(group, shards, seen))
    code = _report(group, shards, seen)
    if code != OK:
        raise typer.Exit(code)


def _report(group: str, shards: list[int], seen: list[Look]) -> int:
    """Say why shards are missing from the picture; return the exit code."""
    code = OK
    for number, view in zip(shards, seen, strict=True):
        if isinstance(view, TidemarkError):
            failure = describe(view)
            code = code or (failure.code if failure is not None else FAILED)
            fail(f"shard {number} of {group}: {view.message}", view.advice)
    return code
