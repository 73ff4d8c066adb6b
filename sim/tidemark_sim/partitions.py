"""Partial partitions: which links of an ensemble are cut, where at least one member still reaches a majority (O44).

Three are the cases of the Omni-Paxos paper: quorum loss, constrained election and chained.
Stays out: cutting and mending (`faults`), what must hold meanwhile (`liveness`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from tidemark_core.base.quorum import majority

from .dice import Dice

Pairs = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Partition:
    """`first` is cut for a while before all of `cut` is; each pair is cut in both directions."""

    name: str
    cut: Pairs
    first: Pairs


def leader_cut_off(members: Sequence[str], leader: str) -> Partition:
    """The leader reaches none of its followers; they reach each other."""
    return Partition("leader cut off", [(leader, other) for other in members if other != leader], [])


def quorum_loss(members: Sequence[str], leader: str, hub: str) -> Partition:
    """Every link is cut but those of one follower."""
    return Partition("quorum loss", _all_but(members, hub), [])


def constrained(members: Sequence[str], leader: str, hub: str) -> Partition:
    """One follower has missed entries; it reaches all others but the leader, and no other link is left."""
    cut = [*_all_but(members, hub), (leader, hub)]
    return Partition("constrained election", cut, [(leader, hub)])


def chained(members: Sequence[str]) -> Partition:
    """Each member reaches its neighbours in a row."""
    linked = set(pairwise(members))
    return Partition("chained", [pair for pair in combinations(members, 2) if pair not in linked], [])


def draw(dice: Dice, members: Sequence[str], leader: str, operator: str) -> Partition:
    """Draw one; the operator is cut from some members only in a partition that has no name."""
    others = dice.shuffled([member for member in members if member != leader])
    match dice.weighted((("leader", 1.0), ("loss", 1.0), ("constrained", 1.0), ("chained", 1.0), ("any", 2.0))):
        case "leader":
            return leader_cut_off(members, leader)
        case "loss":
            return quorum_loss(members, leader, others[0])
        case "constrained":
            return constrained(members, leader, others[0])
        case "chained":
            row = chained(dice.shuffled(list(members)))
            if reaching(members, row.cut):   # of six or seven members, neighbours alone are no majority
                return row
    while True:
        links = [*combinations(members, 2), *((operator, member) for member in members)]
        cut = [pair for pair in links if dice.chance(0.4)]
        if reaching(members, cut, operator):
            return Partition("any", cut, [])


def reaching(members: Sequence[str], cut: Iterable[tuple[str, str]], operator: str = "") -> list[str]:
    """Return the members that reach a majority, counting only those that the operator reaches, too."""
    apart = {frozenset(pair) for pair in cut}
    seen = [member for member in members if frozenset((operator, member)) not in apart]
    return [
        one for one in seen
        if sum(one == other or frozenset((one, other)) not in apart for other in seen) >= majority(len(members))
    ]


def _all_but(members: Sequence[str], hub: str) -> Pairs:
    return [pair for pair in combinations(members, 2) if hub not in pair]
