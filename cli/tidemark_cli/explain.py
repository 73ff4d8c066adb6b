"""`tidemark explain read`: which member sends what to a reader, and why; and what is being sent right now.

Entries next to each other that go the same way are one row; control entries and holes, which go with the block
around them, are counted below.
Stays out: the rule (a member computes it), the dump (debug).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import tidemark
import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from tidemark import ExplainedItem, Explanation
from tidemark_core.base.ids import shard_id
from tidemark_core.delivery.order import Mode
from tidemark_wire.v1 import node_pb2

from . import target
from .debug import dump_node
from .options import (
    DEFAULT_DIR,
    ClusterOption,
    DirOption,
    GroupArgument,
    JsonOption,
    LocationOption,
    ReadMode,
    TimeoutOption,
)
from .output import emit, table
from .overviews import shard

COUNT = 1000
DUMP_TIMEOUT_S = 3.0

explain_app = typer.Typer(no_args_is_help=True, help="Say why things go as they go.")


@explain_app.callback()
def _explain() -> None:
    """Say why things go as they go."""


# --- who sends what


@dataclass
class Range:
    """Entries, or control entries and holes, that go the same way."""

    first: int
    last: int
    entries: int
    bytes: int
    order: tuple[str, ...]
    sender: str
    senders: tuple[str, ...]
    keepers: tuple[str, ...]

    def takes(self, item: ExplainedItem) -> bool:
        return (self.order, self.sender, self.senders, self.keepers) == (
            item.order, item.sender, item.senders, item.keepers
        )

    def add(self, item: ExplainedItem) -> None:
        self.last, self.entries, self.bytes = item.last, self.entries + 1, self.bytes + item.bytes


def ranges_of(items: Iterable[ExplainedItem]) -> list[Range]:
    """Return runs of items that go the same way; what is left out of `items` interrupts none."""
    ranges: list[Range] = []
    for item in items:
        if ranges and ranges[-1].takes(item):
            ranges[-1].add(item)
        else:
            ranges.append(
                Range(item.first, item.last, 1, item.bytes, item.order, item.sender, item.senders, item.keepers)
            )
    return ranges


def why(explanation: Explanation, found: Range) -> str:
    """Return the reason for a sender in words."""
    if explanation.mode is Mode.ALL_SEND_ALL:
        return "everybody sends everything"
    if not found.sender:
        return "all are down: a reader asks everybody for everything"
    passed = found.order[: found.order.index(found.sender)]
    reasons = ["first in the reading order"] if not passed else [f"{', '.join(passed)} down, next in the order"]
    if explanation.mode is Mode.LOCAL:
        shared = dict(zip(explanation.ensemble, explanation.shared_scopes, strict=True))[found.sender]
        scopes = "location scope" if shared == 1 else "location scopes"
        reasons.append(f"shares {shared} {scopes} with the reader, nobody up shares more")
    extra = [node for node in found.senders if node != found.sender]
    if extra:
        reasons.append(f"{', '.join(extra)} would send it too, if back")
    return "; ".join(reasons)


def _range_document(explanation: Explanation, found: Range) -> dict[str, Any]:
    return {
        "first": found.first, "last": found.last, "entries": found.entries, "bytes": found.bytes,
        "order": list(found.order), "sender": found.sender or None, "senders": list(found.senders),
        "keepers": list(found.keepers), "why": why(explanation, found),
    }


def document_of(group: str, shard: int, explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain data."""
    data = [item for item in explanation.items if item.kind == "DATA"]
    control = [item for item in explanation.items if item.kind != "DATA"]
    kinds = sorted({item.kind for item in control})
    return {
        "group": group, "shard": shard, "asked": explanation.node, "mode": str(explanation.mode),
        "ensemble": list(explanation.ensemble), "known_down": list(explanation.known_down),
        "shared_scopes": dict(zip(explanation.ensemble, explanation.shared_scopes, strict=False)),
        "first": explanation.first, "released": explanation.released, "through": explanation.through,
        "ranges": [_range_document(explanation, found) for found in ranges_of(data)],
        "control": [_range_document(explanation, found) for found in ranges_of(control)],
        "control_kinds": {kind: sum(item.kind == kind for item in control) for kind in kinds},
    }


# --- what is being sent


async def live_streams(
    client: tidemark.Client, group: str, shard: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return every delivery stream of the shard now, and of which members that is not known."""
    info = await client.group(group)
    request = node_pb2.DebugDumpRequest(shard=shard_id(info.group_id, shard))
    nodes = {
        name: node.address for name in client.routing.ensemble(group, shard)
        if (node := client.routing.node(name)) is not None and node.address
    }
    dumps = await asyncio.gather(*(dump_node(client, address, request, DUMP_TIMEOUT_S) for address in nodes.values()))
    streams: list[dict[str, Any]] = []
    silent: dict[str, str] = {}
    for name, dump in zip(nodes, dumps, strict=True):
        if "error" in dump:
            silent[name] = dump["error"]
        streams += [{"node": name, **stream} for stream in dump.get("deliveries", [])]
    return sorted(streams, key=lambda stream: (stream["node"], stream["reader"])), silent


# --- for people


def headline(document: dict[str, Any]) -> str:
    """Return the line above the table."""
    said = [
        f"{document['group']}/{document['shard']}", document["mode"],
        f"offsets {document['first']} to {document['released']} may be read",
        f"explained through {document['through']} by {document['asked']}",
    ]
    if document["known_down"]:
        said.append(f"down: {', '.join(document['known_down'])}")
    return "  ".join(said)


def _kept_by(found: dict[str, Any]) -> str:
    return "all" if len(found["keepers"]) == len(found["order"]) else ", ".join(found["keepers"])


def render(document: dict[str, Any]) -> RenderableType:
    """Return the picture: who sends, then what is being sent."""
    parts: list[RenderableType] = [Text(headline(document), style="bold")]
    if document["shared_scopes"]:
        near = ", ".join(f"{node} {shared}" for node, shared in document["shared_scopes"].items())
        parts.append(Text(f"  location scopes shared with the reader: {near}", style="dim"))
    rows = [
        [f"{found['first']}-{found['last']}", found["entries"], f"{found['bytes']:,}", " > ".join(found["order"]),
         _kept_by(found), found["sender"] or "everybody", found["why"]]
        for found in document["ranges"]
    ]
    if rows:
        entries = table(["#OFFSETS", "#ENTRIES", "#BYTES", "ORDER", "KEPT BY", "SENDER", "WHY"], rows)
        parts.append(Padding(entries, (0, 0, 0, 2)))
    else:
        parts.append(Text("  no records there", style="dim"))
    if document["control"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in document["control_kinds"].items())
        senders = ", ".join(dict.fromkeys(found["sender"] or "everybody" for found in document["control"]))
        parts.append(Text(f"  beside them {kinds}, from {senders}", style="dim"))
    parts.append(Text("now", style="bold"))
    streams = [
        [stream["reader"], stream["node"], stream["mode"], stream["generation"],
         ", ".join(stream["known_down"]) or "-", stream["position"], f"{stream['sent_bytes']:,}",
         f"{stream['left_out']:,}", stream["doing"]]
        for stream in document["streams"]
    ]
    columns = ["READER", "NODE", "MODE", "#GEN", "DOWN", "#POSITION", "#SENT", "#LEFT TO OTHERS", "DOING"]
    if streams:
        parts.append(Padding(table(columns, streams), (0, 0, 0, 2)))
    else:
        parts.append(Text("  nobody reads by delivery", style="dim"))
    parts += [Text(f"  {node} does not say: {error}", style="red") for node, error in document["silent"].items()]
    return Group(*parts)


explain_app.command()(shard)


@explain_app.command()
def read(
    group: GroupArgument,
    shard: Annotated[int, typer.Option("--shard", min=0, help="Number of the shard.")] = 0,
    first: Annotated[int, typer.Option("--from", min=0, metavar="OFFSET", help="First offset to explain.")] = 0,
    count: Annotated[
        int, typer.Option("--count", min=1, max=10_000, help="So many entries, control entries and holes.")
    ] = COUNT,
    mode: Annotated[ReadMode, typer.Option("--mode", help="How the reader wants to be served.")] = ReadMode.SCD,
    location: LocationOption = None,
    down: Annotated[
        list[str] | None, typer.Option("--down", metavar="NODE", help="The reader takes it to be down; repeatable.")
    ] = None,
    timeout_s: TimeoutOption = 10.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which member sends what to a reader of GROUP, and why; and who is being sent what now."""
    async def main() -> dict[str, Any]:
        async with await target.connect(state, cluster) as client:
            explanation = await client.explain_read(
                group, shard, first=first, count=count, mode=mode.value, location=location, down=down or (),
                timeout_s=timeout_s,
            )
            streams, silent = await live_streams(client, group, shard)
            return {**document_of(group, shard, explanation), "streams": streams, "silent": silent}

    document = tidemark.run(main())
    emit(as_json, document, lambda: render(document))
