"""`tidemark ks ranges` and `ks hints`: repair, floors and hints of a keyspace, as every node that answers knows them.

Stays out: owners and moves of the whole ring (keyspace_rings), keys (keyspace_explaining).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from tidemark import Keyspace, KeyspaceRanges, RangeAtNode

from .keyspace_arguments import TIMEOUT_S, KeyspaceArgument, ask
from .keyspace_times import ago, time_or_dash
from .options import DEFAULT_DIR, ClusterOption, DirOption, JsonOption, TimeoutOption
from .output import emit, table
from .subscriptions import span


def ranges(
    name: KeyspaceArgument,
    only: Annotated[
        int | None, typer.Option("--range", min=0, metavar="INDEX", help="Only this range, node by node.")] = None,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the repair of each range: floor, last complete exchange, hints, and what keeps its floor from rising."""
    document = document_of(name, ask(name, timeout_s, state, cluster, Keyspace.ranges))
    if only is not None:
        shown = [each for each in document["ranges"] if each["range"] == only]
        if not shown:
            raise typer.BadParameter(f"{only}, the keyspace has {len(document['ranges'])} ranges", param_hint="--range")
        document["ranges"] = shown
    emit(as_json, document, lambda: _ranges(document) if only is None else _one_range(document))


def hints(
    name: KeyspaceArgument,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what nodes keep for owners that were away, what of it was lost, and what needs repair."""
    document = hints_of(document_of(name, ask(name, timeout_s, state, cluster, Keyspace.ranges)))
    emit(as_json, document, lambda: _hints(document))


# --- for programs

_NODES = {
    "late": "late", "needs_repair": "needs repair", "withdrawn": "withdrawn", "copying": "copying"}
"""Fields of a range with names of nodes at which it is not in order, and words for them."""


def document_of(name: str, found: KeyspaceRanges) -> dict[str, Any]:
    """Return what nodes know as plain data, range by range."""
    nodes: dict[int, dict[str, Any]] = {}
    for node, said in found.nodes.items():
        for shown in said.ranges:
            nodes.setdefault(shown.range, {})[node] = _at_node(shown, said.now_ms)
    return {
        "keyspace": name, "nodes": sorted(found.nodes), "silent": dict(found.silent),
        "ranges": [_range_of(index, nodes[index]) for index in sorted(nodes)],
    }


def _at_node(shown: RangeAtNode, now_ms: int) -> dict[str, Any]:
    """Return a range at a node; `exchanged_age_ms` and `oldest_hint_age_ms` are by the clock of the node."""
    def age(ms: int | None) -> int | None:
        return None if ms is None else max(0, now_ms - ms)

    fields = ("version", "part", "floor_ms", "promise_ms", "late", "needs_repair", "hints", "hint_bytes", "hints_lost")
    return {
        **{field: getattr(shown, field) for field in fields},
        "own": sorted(member.node for member in shown.own), "pending": sorted(member.node for member in shown.pending),
        "exchanged_age_ms": age(shown.exchanged_ms), "oldest_hint_age_ms": age(shown.oldest_hint_ms),
        "exchange_ages_ms": {node: age(began_ms) for node, began_ms in shown.exchanges.items()},
        "blocks": [asdict(block) for block in shown.blocks],
    }


def _range_of(index: int, nodes: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return one range as all nodes together show it; the newest record counts.

    `exchanged_age_ms` is the greatest of owners, None where one of them has had no complete exchange.
    `unanswered` are owners.
    """
    newest = max(nodes.values(), key=lambda each: int(each["version"]))
    ages = [each["exchanged_age_ms"] for each in nodes.values() if each["part"] == "owner"]
    return {
        "range": index, "version": newest["version"], "own": newest["own"], "pending": newest["pending"],
        "floor_ms": newest["floor_ms"],
        "exchanged_age_ms": None if not ages or None in ages else max(ages),
        **{field: sum(each[field] for each in nodes.values()) for field in ("hints", "hint_bytes", "hints_lost")},
        **{field: [node for node, each in nodes.items() if each.get(field) or each["part"] == field]
           for field in _NODES},
        "unanswered": [node for node in newest["own"] if node not in nodes],
        "blocks": _once((block, [at]) for at, each in nodes.items() for block in each["blocks"]),
        "nodes": dict(nodes),
    }


def _once(blocks: Iterable[tuple[Mapping[str, Any], Sequence[str]]]) -> list[dict[str, Any]]:
    """Return each block once, with the nodes `at` which it is known and the longest time that one of them knows."""
    found: dict[Any, dict[str, Any]] = {}
    for block, at in blocks:
        known = found.setdefault((block["what"], block["node"]), {**block, "at": []})
        known["at"] = sorted({*known["at"], *at})
        known["for_ms"] = max(known["for_ms"] or 0, block["for_ms"] or 0) or None
    return list(found.values())


def together(ranges: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what several ranges have in common: sums, the oldest exchange, every name, every block once."""
    ages = [each["exchanged_age_ms"] for each in ranges]
    return {
        "exchanged_age_ms": None if None in ages else max(ages),
        **{field: sum(each[field] for each in ranges) for field in ("hints", "hint_bytes", "hints_lost")},
        **{field: sorted({node for each in ranges for node in each[field]}) for field in (*_NODES, "unanswered")},
        "blocks": _once((block, block["at"]) for each in ranges for block in each["blocks"]),
    }


def hints_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return of all that nodes know what concerns hints."""
    kept = [
        {"node": node, "range": each["range"], "owners": each["own"],
         **{field: at[field] for field in ("hints", "hint_bytes", "oldest_hint_age_ms", "hints_lost", "needs_repair")}}
        for each in document["ranges"] for node, at in each["nodes"].items()
        if at["hints"] or at["hints_lost"] or at["needs_repair"]]
    return {
        "keyspace": document["keyspace"],
        **{field: sum(each[field] for each in kept) for field in ("hints", "hint_bytes", "hints_lost")},
        "nodes": document["nodes"], "silent": document["silent"], "kept": kept,
    }


# --- for people


def words(shown: Mapping[str, Any]) -> list[str]:
    """Return what is not in order about a range, and what its floor waits for."""
    found = [f"{what} at {', '.join(shown[field])}" for field, what in _NODES.items() if shown[field]]
    blocking = {block["node"] for block in shown["blocks"]}
    if unexplained := [node for node in shown["unanswered"] if node not in blocking]:
        found.append(f"{', '.join(unexplained)} did not answer")
    if shown["hints_lost"]:
        found.append(f"hints lost: {shown['hints_lost']}")
    return found + [block_words(block) for block in shown["blocks"]]


def block_words(block: Mapping[str, Any]) -> str:
    """Return what keeps a floor from rising, and for how long."""
    subject = block["node"] or f"at {', '.join(block['at'])}"
    return f"{subject}: {block['what']}" + (f" for {span(block['for_ms'])}" if block["for_ms"] else "")


def silent_lines(silent: Mapping[str, str]) -> Iterable[RenderableType]:
    """Return a line for each node that did not answer."""
    return [Text(f"  {node} does not say: {why}", style="red") for node, why in sorted(silent.items())]


def _headline(document: Mapping[str, Any], *facts: str) -> str:
    asked = len(document["nodes"]) + len(document["silent"])
    return "  ".join([document["keyspace"], *facts, f"{len(document['nodes'])} of {asked} nodes answered"])


def _shown(headline: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], silent: Mapping[str, str]) -> Group:
    body = [Padding(table(columns, rows), (0, 0, 0, 2))] if rows else []
    return Group(headline, *body, *silent_lines(silent))


def _ranges(document: Mapping[str, Any]) -> RenderableType:
    rows = [
        [each["range"], ", ".join(each["own"]), ", ".join(each["pending"]) or "-", time_or_dash(each["floor_ms"]),
         ago(each["exchanged_age_ms"]), each["hints"], "; ".join(words(each)) or "in order"]
        for each in document["ranges"]]
    headline = _headline(document, f"{len(document['ranges'])} ranges")
    columns = ["#RANGE", "OWNERS", "MOVING TO", "FLOOR", "EXCHANGED", "#HINTS", "STATE"]
    return _shown(headline, columns, rows, document["silent"])


def _one_range(document: Mapping[str, Any]) -> RenderableType:
    [shown] = document["ranges"]
    rows = [
        [node, at["part"], at["version"], time_or_dash(at["floor_ms"]), time_or_dash(at["promise_ms"]), at["hints"],
         ", ".join(f"{other} {ago(age)}" for other, age in sorted(at["exchange_ages_ms"].items())) or "-"]
        for node, at in sorted(shown["nodes"].items())]
    columns = ["NODE", "PART", "#RECORD", "FLOOR", "PROMISE", "#HINTS", "EXCHANGED WITH"]
    headline = _headline(document, f"range {shown['range']}", *(words(shown) or ["in order"]))
    return _shown(headline, columns, rows, document["silent"])


def _hints(document: Mapping[str, Any]) -> RenderableType:
    rows = [
        [each["node"], each["range"], each["hints"], f"{each['hint_bytes']:,}", ago(each["oldest_hint_age_ms"]),
         each["hints_lost"], "yes" if each["needs_repair"] else "-", ", ".join(each["owners"])]
        for each in document["kept"]]
    headline = _headline(
        document, f"{document['hints']:,} hints", f"{document['hint_bytes']:,} bytes", f"{document['hints_lost']} lost")
    columns = ["NODE", "#RANGE", "#HINTS", "#BYTES", "OLDEST", "#LOST", "NEEDS REPAIR", "OWNERS OF THE RANGE"]
    return _shown(headline, columns, rows, document["silent"])
