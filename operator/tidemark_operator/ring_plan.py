"""Ring plans: which owners the ranges of a keyspace should have next (D63).

An owner whose disk is gone, whose node leaves, or whose pool the keyspace does not use, is replaced.  N changes by one
at a time.  Members that own at least two ranges more than another one give it some, as far as zones allow.
Pure.  Stays out: first owners (`placing`), carrying a move out (core's `mover`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tidemark_core.base.ids import Member
from tidemark_core.optimistic.placing import replaced
from tidemark_core.optimistic.ring import Owners, Quorum, Range, wrong_move

from .keyspaces import Keyspace, is_gone
from .metadata import NodeLife
from .model import Node

_NO_MEMBER = Member("", "")


def plan_ring(
    keyspace: Keyspace, ranges: Sequence[Range], nodes: Mapping[str, Node], room: int
) -> dict[int, Owners]:
    """Return the next owners of up to `room` ranges, by index."""
    candidates = keyspace.zones(nodes)
    load = Counter(member for record in ranges for member in (record.pending or record.own).members)
    lost = {member for member in load if is_gone(member, nodes)}
    leaving = lost | {member for member in load if member not in lost and not _stays(keyspace, nodes[member.node])}
    zones = candidates | {
        member: nodes[member.node].zone if keyspace.spread_zones else "" for member in load if member.node in nodes}
    found: dict[int, Owners] = {}
    at_rest = [(index, record) for index, record in enumerate(ranges) if record.pending is None]
    # Ranges that lost most owners come first: they are nearest to losing their data.
    for index, record in sorted(at_rest, key=lambda each: -sum(member in lost for member in each[1].own.members)):
        if len(found) >= room:
            return found
        if record.own.quorum == keyspace.quorum and leaving.isdisjoint(record.own.members):
            continue
        wanted = _owners(keyspace, record.own, leaving, candidates, zones, load)
        if wanted != record.own and wrong_move(record, wanted) is None:
            load.subtract(record.own.members)
            load.update(wanted.members)
            found[index] = wanted
    if not found and not leaving and len(at_rest) == len(ranges):
        found = _evened(ranges, candidates, zones, load, room)
    return found


def _stays(keyspace: Keyspace, node: Node) -> bool:
    return node.life is NodeLife.STAYS and not node.emptied and (not keyspace.pools or node.pool in keyspace.pools)


def _owners(
    keyspace: Keyspace, own: Owners, leaving: Iterable[Member], candidates: Mapping[Member, str],
    zones: Mapping[Member, str], load: Mapping[Member, int],
) -> Owners:
    """Return the owners that one range should have next; an owner that no member can replace stays."""
    members, leaving = list(own.members), set(leaving)

    def another(old: Member) -> Member | None:
        there = {**candidates, **{member: zones.get(member, "") for member in members if member in zones}}
        return replaced(members, old, there, load)

    for old in own.members:
        if old in leaving and (new := another(old)) is not None:
            members[members.index(old)] = new
    if keyspace.factor > len(members) and (new := another(_NO_MEMBER)) is not None:
        members.append(new)
    elif keyspace.factor < len(members):
        members.remove(max(members, key=lambda each: (
            each in leaving, _beside(each, members, zones), load.get(each, 0), each)))
    return Owners(tuple(members), _quorum(keyspace.quorum, len(members), own.quorum))


def _quorum(declared: Quorum, n: int, own: Quorum) -> Quorum:
    """Return the quorums of a list of `n` owners: the declared ones, or those that fit on the way to them."""
    if n == declared.n:
        return declared
    if n == own.n:
        return own
    r, w = min(declared.r, n), min(declared.w, n)
    if declared.strict or own.strict:
        w = max(w, n // 2 + 1)
        r = max(r, n - w + 1)
    return Quorum(n, r, w)


def _evened(
    ranges: Sequence[Range], candidates: Mapping[Member, str], zones: Mapping[Member, str], load: Counter[Member],
    room: int,
) -> dict[int, Owners]:
    """Return moves that make members own equally many ranges, as far as no two owners come nearer to each other."""
    found: dict[int, Owners] = {}
    for taker in sorted(candidates, key=lambda member: (load[member], member)):
        if max(load.values(), default=0) - load[taker] < 2:
            break
        for index, record in enumerate(ranges):
            if len(found) >= room:
                return found
            members = record.own.members
            if index in found or taker.node in {member.node for member in members}:
                continue
            givers = [
                each for each in members
                if load[each] - load[taker] > 1 and not _nearer(taker, each, members, zones)]
            if not givers:
                continue
            giver = max(givers, key=lambda member: (load[member], member))
            load[giver] -= 1
            load[taker] += 1
            new = tuple(taker if member == giver else member for member in members)
            found[index] = Owners(new, record.own.quorum)
    return found


def _nearer(taker: Member, giver: Member, members: Iterable[Member], zones: Mapping[Member, str]) -> bool:
    """Say whether owners come nearer to each other where one takes the place of another."""
    staying = [member for member in members if member != giver]
    return _beside(taker, staying, zones) > _beside(giver, staying, zones)


def _beside(member: Member, others: Iterable[Member], zones: Mapping[Member, str]) -> int:
    """Return how many others stand in the zone of a member; without a zone it stands alone."""
    zone = zones.get(member, "")
    return sum(bool(zone) and zones.get(other, "") == zone for other in others if other != member)
