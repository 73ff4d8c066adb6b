"""Placing: which members own the ranges of a keyspace, and which one takes the place of an owner that leaves (D63).

Owners of a range lie in as many zones as there are, as evenly as the sizes of the zones allow.  A node that names no
zone is a zone of its own.  A hash of range and name decides between equal choices, so that each member shares its
ranges with many others, which give it copies and answer in its place.  The same arguments give the same owners.
Stays out: which nodes may own ranges, the records and their moves (`ring`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from ..base.ids import Member, key_hash

Zones = Mapping[Member, str]
"""Members that may own ranges, with the zone of each; "" is no zone.  Their order does not matter."""


def placed(partitions: int, nodes: Zones, n: int, keyspace: int = 0) -> tuple[tuple[Member, ...], ...]:
    """Return the owners of each range of a new keyspace; clients ask the first of a list first.

    Members own equally many ranges, give or take one, as far as zones allow, and are the first owner of equally many.
    The number of the keyspace decides which ones own one more, so that many small keyspaces share all members.
    """
    if not 0 < n <= len(nodes):
        raise ValueError(f"{n} owners of each range are wanted, of {len(nodes)} nodes")
    zones: dict[str, list[Member]] = {}
    for member in sorted(nodes):
        zones.setdefault(_zone(member.node, nodes[member]), []).append(member)
    load: Counter[Member] = Counter()
    lists = []
    sizes = {zone: len(members) for zone, members in zones.items()}
    for index, counts in enumerate(_counts(partitions, sizes, n, keyspace)):
        owners: list[Member] = []
        for zone, count in counts.items():
            by_load = sorted(zones[zone], key=lambda member: (load[member], _mixed(keyspace, index, member.node)))
            owners += by_load[:count]
        load.update(owners)
        lists.append(sorted(owners, key=lambda member: _mixed(keyspace, index, member.node)))
    firsts = _firsts(lists)
    return tuple(
        (first, *(owner for owner in owners if owner != first)) for first, owners in zip(firsts, lists, strict=True))


def replaced(
    owners: Collection[Member], leaving: Member, nodes: Zones, load: Mapping[Member, int]
) -> Member | None:
    """Return the member that becomes owner of a range in place of `leaving`, None where no node is left.

    `load` has the number of ranges by member.  A new life of the leaving node may take its place; a new life of another
    owner's node may not, or two owners would be one node.
    """
    zone_of = {member.node: _zone(member.node, zone) for member, zone in nodes.items()}
    staying = [owner.node for owner in owners if owner != leaving]
    beside = Counter(zone_of[node] for node in staying if node in zone_of)
    left = [member for member in nodes if member != leaving and member.node not in staying]
    return min(left, key=lambda each: (beside[zone_of[each.node]], load.get(each, 0), each), default=None)


def _zone(node: str, zone: str) -> str:
    return zone or f"\0{node}"


def _mixed(keyspace: int, index: int, name: str) -> int:
    return key_hash(b"%d/%d/%s" % (keyspace, index, name.encode()))


def _counts(partitions: int, sizes: Mapping[str, int], n: int, keyspace: int) -> Iterator[dict[str, int]]:
    """Yield for each range how many of its owners lie in each zone.

    Each zone has `level` of them, or all its members where it has fewer; the owners that remain lie in one zone each.
    A zone has a share of these by its size, at most one for each range; one without another member gets none.
    """
    level = max(level for level in range(n + 1) if sum(min(size, level) for size in sizes.values()) <= n)
    every = {zone: min(size, level) for zone, size in sizes.items()}
    remain = n - sum(every.values())
    share = dict.fromkeys(sizes, 0)
    mixed = sorted(share, key=lambda zone: _mixed(keyspace, partitions, zone))   # the first of equal zones has more
    for _ in range(partitions * remain):
        below = (zone for zone in mixed if share[zone] < partitions)
        share[min(below, key=lambda zone: (partitions * level + share[zone]) / sizes[zone])] += 1
    for index in range(partitions):
        # The largest shares first: none is then larger than the number of ranges that are to come.
        more = sorted(share, key=lambda zone: (-share[zone], _mixed(keyspace, index, zone)))[:remain]
        for zone in more:
            share[zone] -= 1
        yield {zone: count + (zone in more) for zone, count in every.items()}


def _firsts(lists: list[list[Member]]) -> list[Member]:
    """Return the first owner of each range, so that each member is the first of equally many, as far as possible."""
    led: Counter[Member] = Counter()
    firsts = []
    for owners in lists:
        firsts.append(min(owners, key=lambda member: led[member]))
        led[firsts[-1]] += 1
    while any(_handed_on(giver, firsts, lists) for giver in sorted(led)):
        pass
    return firsts


def _handed_on(giver: Member, firsts: list[Member], lists: list[list[Member]]) -> bool:
    """Make a member with too many ranges the first of one less, and say whether that was possible.

    It hands a range to another owner of that range, this one may hand on another range, and so on: the last one of the
    chain was the first of fewer.
    """
    leads: defaultdict[Member, list[int]] = defaultdict(list)
    for index, first in enumerate(firsts):
        leads[first].append(index)
    takes: dict[Member, int] = {}    # the range that is handed to a member
    reached = [giver]
    for member in reached:
        for index in leads[member]:
            new = [owner for owner in lists[index] if owner != giver and owner not in takes]
            takes |= dict.fromkeys(new, index)
            reached += new
    taker = min(reached, key=lambda member: len(leads[member]))
    if len(leads[taker]) > len(leads[giver]) - 2:
        return False
    while taker != giver:
        index = takes[taker]
        firsts[index], taker = taker, firsts[index]
    return True
