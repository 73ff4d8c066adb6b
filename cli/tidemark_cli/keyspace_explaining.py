"""`tidemark ks explain`: what every node has of a key, on disk and in hints, and why a read shows what it shows.

Stays out: ranges (keyspace_repairs), the rule that chooses (core).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from tidemark import KeyAtNode, KeyExplanation, SeenCell

from .keyspace_arguments import TIMEOUT_S, HexOption, KeyArgument, KeyspaceArgument, ask, bytes_of
from .keyspace_times import ago, shown, stamp_document, time_of, time_or_dash
from .options import DEFAULT_DIR, ClusterOption, DirOption, JsonOption, TimeoutOption
from .output import emit, table
from .records import text_or_base64


def explain(
    name: KeyspaceArgument,
    key: KeyArgument,
    element: Annotated[
        str | None,
        typer.Option("--element", metavar="MEMBER|FIELD", help="This element of the key; else its String."),
    ] = None,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what every node has of KEY, and why a read shows what it shows; it shows no value."""
    wanted = bytes_of(key, in_hex, "KEY")
    inner = None if element is None else bytes_of(element, in_hex, "--element")
    found = ask(name, timeout_s, state, cluster, lambda ks: ks.explain(wanted, inner))
    emit(as_json, document_of(name, found), lambda: render(name, found))


# --- for programs


def document_of(name: str, found: KeyExplanation) -> dict[str, Any]:
    """Return an explanation as plain data."""
    return {
        "keyspace": name, **text_or_base64("key", found.key),
        **({} if found.element is None else text_or_base64("element", found.element)),
        "outcome": found.outcome, "range": found.range, "version": found.version,
        "own": [member.node for member in found.own], "pending": [member.node for member in found.pending],
        "shown": found.shown, "why": found.why, "equal": found.equal, "now_ms": found.now_ms,
        "winner": None if found.winner is None else _cell(found.winner), "silent": list(found.silent),
        "nodes": [_node(node) for node in found.nodes],
    }


def _node(node: KeyAtNode) -> dict[str, Any]:
    fields = (
        "part", "version", "floor_ms", "promise_ms", "exchanged_ms", "needs_repair", "lacks", "cells_more",
        "hints_more")
    return {
        "node": node.member.node, "incarnation": node.member.incarnation, "answered": node.answered,
        **({field: getattr(node, field) for field in fields} if node.answered else {}),
        "cells": [_cell(cell) for cell in node.cells], "hints": [_cell(cell) for cell in node.hints],
    }


def _cell(cell: SeenCell) -> dict[str, Any]:
    dot = {"n": cell.n, "node": cell.actor_node, "start": cell.actor_start.hex()} if cell.actor_node else None
    return {
        "sort": cell.sort, "stamp": stamp_document(cell.stamp), "dead": cell.dead,
        "expires_at_ms": cell.expires_at_ms or None, "value_bytes": cell.value_bytes,
        "value_digest": f"{cell.value_digest:016x}", "dot": dot,
    }


# --- for people


def render(name: str, found: KeyExplanation) -> RenderableType:
    """Return the decision, then the cells and their holders, then the nodes."""
    key = shown(found.key)
    if found.element is not None:
        key = f"{key}, element {shown(found.element)}"
    moving = f"  moving to {_names(found.pending)}" if found.pending else ""
    parts: list[RenderableType] = [
        Text(f"{name}  key {key}  range {found.range}  record {found.version}  owners {_names(found.own)}{moving}"),
        Text(f"  a read of all owners shows {_decision(found)}: {found.why}")]
    holders = _holders(found)
    if holders:
        columns = ["", "CELL", "TIME", "WRITTEN AT", "#BYTES", "DIGEST", "EXPIRES", "HELD BY", "HINT AT"]
        parts.append(Padding(table(columns, [
            _cell_row(cell, found, held, hinted) for cell, (held, hinted) in holders.items()]), (0, 0, 0, 2)))
    columns = ["NODE", "PART", "#RECORD", "FLOOR", "PROMISE", "EXCHANGED", "#CELLS", "#HINTS", ""]
    parts.append(Padding(table(columns, [_node_row(node, found) for node in found.nodes]), (0, 0, 0, 2)))
    if found.silent:
        owners = "" if found.outcome == "ok" else ", an owner is among them"
        parts.append(Text(f"  {', '.join(found.silent)} did not answer{owners}", style="red"))
    return Group(*parts)


def _decision(found: KeyExplanation) -> str:
    return f"a value of {found.winner.value_bytes:,} bytes" if found.winner and found.shown else "nothing"


def _holders(found: KeyExplanation) -> Mapping[SeenCell, tuple[list[str], list[str]]]:
    """Return every cell, the newest first, with the nodes that hold it on disk and those that hold it as a hint."""
    holders: dict[SeenCell, tuple[list[str], list[str]]] = {}
    for node in found.nodes:
        for place, cells in enumerate((node.cells, node.hints)):
            for cell in cells:
                holders.setdefault(cell, ([], []))[place].append(node.member.node)
    return dict(sorted(holders.items(), key=lambda each: each[0].stamp, reverse=True))


def _cell_row(cell: SeenCell, found: KeyExplanation, held: list[str], hinted: list[str]) -> list[Any]:
    state = "delete" if cell.dead and cell.sort != "clear" else cell.sort
    dot = f" dot {cell.n}" if cell.actor_node else ""
    return [
        ">" if cell == found.winner else "", state, time_of(cell.stamp.ms), f"{cell.stamp.node}{dot}",
        "-" if cell.dead else f"{cell.value_bytes:,}", "-" if cell.dead else f"{cell.value_digest:016x}",
        time_or_dash(cell.expires_at_ms), ", ".join(held) or "-", ", ".join(hinted) or "-"]


def _node_row(node: KeyAtNode, found: KeyExplanation) -> list[Any]:
    if not node.answered:
        return [f"({node.member.node})", *["-"] * 7, "did not answer"]
    remarks = [word for word, holds in (("lacks it", node.lacks), ("needs repair", node.needs_repair)) if holds]
    exchanged = ago(max(0, found.now_ms - node.exchanged_ms)) if node.exchanged_ms else "-"
    return [
        node.member.node, node.part, node.version, time_or_dash(node.floor_ms), time_or_dash(node.promise_ms),
        exchanged, len(node.cells) + node.cells_more, len(node.hints) + node.hints_more, ", ".join(remarks)]


def _names(members: tuple[Any, ...]) -> str:
    return ", ".join(sorted(member.node for member in members))
