"""`tidemark ks ring`: owners and moves of all ranges, as the shard map has them, and their repair, as nodes know it.

Ranges next to each other with the same owners are one row.  Stays out: one range node by node (keyspace_repairs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import tidemark
from rich.console import Group, RenderableType
from rich.padding import Padding
from tidemark import KeyspaceRanges, TidemarkError
from tidemark.routing import Ring
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.ring import Owners, Range
from tidemark_wire.v1 import common_pb2

from . import target
from .keyspace_arguments import KeyspaceArgument
from .keyspace_repairs import document_of as repairs_of
from .keyspace_repairs import silent_lines, together, words
from .keyspace_times import ago, time_or_dash
from .options import DEFAULT_DIR, ClusterOption, DirOption, JsonOption, TimeoutOption
from .output import emit, table

BAR_COLUMNS = 32
LOOK_S = 1.5
"""For nodes to say what they know: the map alone is a picture too."""


def ring(
    name: KeyspaceArgument,
    timeout_s: TimeoutOption = LOOK_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the ring: owners, shares and moves; floors, late exchanges and blocks, as far as nodes answer in time."""
    async def main() -> dict[str, Any]:
        async with await target.connect(state, cluster) as client:
            ring = await client.routing.find_keyspace(name)
            try:
                known = await client.keyspace(name).ranges(timeout_s=timeout_s)
            except TidemarkError as error:    # the picture of the map stays
                known = KeyspaceRanges({}, {node.node: str(error) for node in client.shard_map.nodes})
            return document_of(ring, client.shard_map, known)

    document = tidemark.run(main())
    emit(as_json, document, lambda: drawn(document))


# --- for programs


def document_of(ring: Ring, shard_map: common_pb2.ShardMap, known: KeyspaceRanges) -> dict[str, Any]:
    """Return a ring as plain data: `share` is a node's part of all copies; an owner that does not answer is `away`.

    `repair` of a run is what nodes that answered know of its ranges, None where none did; `silent` are the others.
    """
    alive = {Member(node.node, node.incarnation) for node in shard_map.nodes if node.available}
    copies, coming = Counter[str](), Counter[str]()
    for record in ring.ranges:
        copies.update(member.node for member in record.own.members)
        if record.pending is not None:
            coming.update(each.node for each in record.pending.members if each not in record.own.members)
    total = sum(copies.values())
    names = sorted({node.node for node in shard_map.nodes} | copies.keys() | coming.keys())
    up = {member.node for member in alive}
    info = ring.info
    repairs = {each["range"]: each for each in repairs_of(ring.name, known)["ranges"]}
    return {
        "keyspace": ring.name, "keyspace_id": ring.keyspace_id, "map_version": shard_map.version,
        "ranges": len(ring.ranges), "moves": sum(record.pending is not None for record in ring.ranges),
        "read_repair": info.read_repair or "Blocking", "sloppy": info.sloppy, "eventual": info.eventual,
        "overrides_allowed": info.overrides_allowed, "default_ttl_ms": info.default_ttl_ms or None,
        "nodes": [
            {"node": node, "ranges": copies[node], "moving_in": coming[node],
             "share": round(copies[node] / total, 4), "away": node not in up}
            for node in names],
        "runs": [_run(first, records, alive, repairs) for first, records in runs(ring.ranges)],
        "silent": dict(known.silent),
    }


def runs(ranges: Sequence[Range]) -> list[tuple[int, list[Range]]]:
    """Return runs of ranges with the same owners and the same move: the index of the first, and the ranges."""
    found, first = [], 0
    for _, each in groupby(ranges, key=lambda record: (_key(record.own), record.pending and _key(record.pending))):
        records = list(each)
        found.append((first, records))
        first += len(records)
    return found


def _key(owners: Owners) -> tuple[Any, ...]:
    return tuple(sorted(owners.members)), owners.quorum


def _run(
    first: int, records: Sequence[Range], alive: set[Member], repairs: Mapping[int, dict[str, Any]]
) -> dict[str, Any]:
    own, pending = records[0].own, records[0].pending
    known = [repairs[index] for index in range(first, first + len(records)) if index in repairs]
    floors = [record.floor_ms for record in records]
    return {
        "first": first, "last": first + len(records) - 1, **_owners(own, alive),
        "pending": _owners(pending, alive) if pending is not None else None,
        "floor_ms_min": min(floors), "floor_ms_max": max(floors), "repair": together(known) if known else None,
    }


def _owners(owners: Owners, alive: set[Member]) -> dict[str, Any]:
    n, r, w = owners.quorum
    return {
        "owners": [
            {"node": member.node, "incarnation": member.incarnation, "away": member not in alive}
            for member in sorted(owners.members)],
        "n": n, "r": r, "w": w,
    }


# --- for people


def drawn(document: dict[str, Any]) -> RenderableType:
    """Return a ring as people read it; owners that are away stand in brackets."""
    moves = document["moves"]
    facts = [
        document["keyspace"], f"id {document['keyspace_id']}", f"{document['ranges']} ranges",
        f"{moves} {'move' if moves == 1 else 'moves'} open", f"read repair {document['read_repair']}",
        *(word for word in ("sloppy", "eventual") if document[word]), f"map {document['map_version']}"]
    ranges = table(
        ["RANGES", "#COUNT", "OWNERS", "#N", "#R", "#W", "MOVING TO", "FLOOR", "EXCHANGED", "#HINTS", "STATE"],
        [_row(run) for run in document["runs"]])
    most = max(node["ranges"] for node in document["nodes"])
    nodes = table(
        ["NODE", "#RANGES", "#MOVING IN", "#SHARE", ""],
        [[f"({node['node']})" if node["away"] else node["node"], node["ranges"], node["moving_in"],
          f"{node['share']:.1%}", "█" * round(BAR_COLUMNS * node["ranges"] / max(1, most))]
         for node in document["nodes"]])
    return Group(
        "  ".join(facts), Padding(ranges, (0, 0, 0, 2)), Padding(nodes, (0, 0, 0, 2)),
        *silent_lines(document["silent"]))


def _row(run: dict[str, Any]) -> list[Any]:
    first, last, repair = run["first"], run["last"], run["repair"]
    state = ["-", "-", "-"] if repair is None else [
        ago(repair["exchanged_age_ms"]), repair["hints"], "; ".join(words(repair)) or "in order"]
    return [
        f"{first}-{last}" if last > first else str(first), last - first + 1, _names(run), run["n"], run["r"], run["w"],
        _names(run["pending"]) if run["pending"] else "-", time_or_dash(run["floor_ms_min"]), *state]


def _names(owners: dict[str, Any]) -> str:
    return ", ".join(f"({each['node']})" if each["away"] else each["node"] for each in owners["owners"])
