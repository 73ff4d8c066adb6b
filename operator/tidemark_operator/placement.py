"""Placement: which nodes hold the copies of a shard: distinct zones first, then the least loaded.

Computed from plain views, deterministically: the same views and the same seed give the same nodes.
Pure.  Stays out: moving copies that are there (`plan`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from .metadata import NodeLife
from .model import Group, Node, zones_of
from .resources.conditions import ConditionReason as R


@dataclass(frozen=True, slots=True)
class PlanRefusal:
    reason: R
    message: str


def place_group(group: Group, nodes: Iterable[Node], load: Mapping[str, int]) -> (
        list[tuple[str, ...]] | PlanRefusal):
    """Choose the ensemble of every shard of a new group: distinct zones first, then least loaded nodes.

    The first of an ensemble leads it when the logs are equal, so firsts are spread too.
    """
    nodes = [node for node in nodes if node.eligible]
    eligible = [node for node in nodes if group.allows(node)]
    if len(eligible) < group.factor:
        old = [node.node for node in nodes if group.in_pools(node) and not group.allows(node)]
        return PlanRefusal(
            R.NOT_ENOUGH_NODES,
            f"factor {group.factor} needs as many nodes that are up, {len(eligible)} are eligible"
            + (f" in pools {', '.join(group.pools)}" if group.pools else "")
            + (f"; kind {group.kind} needs a newer release on {', '.join(old[:3])}" if old else ""),
        )
    copies: Counter[str] = Counter(load)
    firsts: Counter[str] = Counter()
    ensembles = []
    for index in range(group.shards):
        chosen: list[Node] = []
        for _slot in range(group.factor):
            chosen.append(best_node(eligible, chosen, copies, group.spread_zones, f"{group.uid}/{index}"))
        names = [node.node for node in chosen]
        copies.update(names)
        names.sort(key=lambda name: (firsts[name], _digest(f"{group.uid}/{index}", name)))
        firsts[names[0]] += 1
        ensembles.append(tuple(names))
    return ensembles


class Hosted(Protocol):
    """A log group or a keyspace, as far as it is to be placed."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def factor(self) -> int: ...

    @property
    def spread_zones(self) -> bool: ...

    def allows(self, node: Node) -> bool: ...


def nodes_to_come(group: Hosted, nodes: Iterable[Node]) -> list[str]:
    """Return the nodes that never answered, and without which copies of what is new would share a zone.

    A node whose zone is not known yet may stand in any, where there are zones.
    """
    allowed = [node for node in nodes if group.allows(node) and node.life is NodeLife.STAYS]
    zones = zones_of(node for node in allowed if node.eligible)
    if not group.spread_zones or len(zones) >= group.factor:
        return []
    return sorted(
        node.node for node in allowed
        if node.member is None and node.zone not in zones and (node.zone or zones))


def distinct_domains(ensemble: Iterable[str], nodes: Mapping[str, Node]) -> int:
    """Return how many zones an ensemble spans; a node without a zone is a zone of its own."""
    return len({nodes[name].zone or f"\0{name}" if name in nodes else f"\0{name}" for name in ensemble})


def best_node(
    candidates: Iterable[Node], chosen: Collection[Node], load: Mapping[str, int], spread: bool, seed: str
) -> Node:
    """Return the node for one more copy: of a zone that has fewest, then the least loaded."""
    taken = {node.node for node in chosen}
    zones = Counter(node.zone for node in chosen if node.zone) if spread else Counter()
    return min(
        (node for node in candidates if node.node not in taken),
        key=lambda node: (zones[node.zone], load.get(node.node, 0), _digest(seed, node.node)),
    )


def _digest(seed: str, node: str) -> bytes:
    return hashlib.blake2b(f"{seed}\0{node}".encode(), digest_size=8).digest()
