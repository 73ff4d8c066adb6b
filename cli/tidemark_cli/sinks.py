"""`tidemark sinks`: how far jobs that write in batches have come, and forgetting those that are over.

Stays out: deciding anything; the leader of the group's first shard does.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import tidemark
import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from tidemark import SinkView

from . import target
from .failures import CommandFailed
from .options import DEFAULT_DIR, ClusterOption, DirOption, GroupArgument, JsonOption, TimeoutOption
from .output import emit, table
from .subscriptions import span

sinks_app = typer.Typer(no_args_is_help=True, help="Jobs that write in batches: how far each has come.")


@sinks_app.callback()
def _sinks() -> None:
    """Jobs that write in batches: how far each has come."""


def _row(each: SinkView) -> list[object]:
    is_open = each.batch != each.marked
    rows = sum(end.rows for end in each.ends if end.batch == each.marked)
    complete = [each.marked, each.parts, f"{rows:,}"] if each.marked >= 0 else ["-", "-", "-"]
    return [
        each.name, *complete, each.batch if is_open else "-", each.joined if is_open else "-",
        span(each.lease_ms - each.expires_in_ms), span(each.expires_in_ms)]


def _render(group: str, seen: tuple[SinkView, ...]) -> RenderableType:
    if not seen:
        return Text(f"no job has written to {group} in batches", style="dim")
    columns = ["SINK", "#COMPLETE", "#PARTS", "#ROWS", "#OPEN", "#JOINED", "#USED", "#LEFT"]
    return Group(Padding(table(columns, [_row(each) for each in seen]), 0))


@sinks_app.command("list")
def list_(
    group: GroupArgument,
    timeout_s: TimeoutOption = 10.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the sinks of GROUP: the newest complete batch of each, its parts and rows, and the batch that is open."""
    async def main() -> tuple[SinkView, ...]:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            return await client.sinks(group).list(timeout_s=timeout_s)

    seen = tidemark.run(main())
    document = {"group": group, "sinks": [
        {**dataclasses.asdict(each), "ends": [end._asdict() for end in each.ends]} for each in seen]}
    emit(as_json, document, lambda: _render(group, seen))


@sinks_app.command()
def delete(
    group: GroupArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the sink.")],
    timeout_s: TimeoutOption = 10.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a sink whose job is over: a job of its name begins with any batch, and appends it once more."""
    async def main() -> bool:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            return await client.sinks(group).delete(name, timeout_s=timeout_s)

    if not tidemark.run(main()):
        raise CommandFailed(f"{group} has no sink {name}", f"See `tidemark sinks list {group}`.", reason="NOT_FOUND")
    emit(as_json, {"group": group, "sink": name}, lambda: Text(f"sink {name} deleted"))
