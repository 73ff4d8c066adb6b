"""Log groups while nodes are still to come: copies wait for distinct zones, and not for ever."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from operator_views import group, node, nodes, to_come, world
from tidemark_core.base.ids import shard_id
from tidemark_operator.etcd import Saved, Write
from tidemark_operator.groups import GroupKeeper
from tidemark_operator.metadata import Keys
from tidemark_operator.mirror import Mirror
from tidemark_operator.model import Node
from tidemark_operator.patience import TO_COME_S, Patience

KEYS = Keys("/t")
HERE = {**nodes(2, "ab"), "n4": node("n4", "a")}
TO_COME = to_come("n3", "c")


class Store:
    """Takes everything."""

    def __init__(self) -> None:
        self.revision = 0

    async def transact(self, _writes: Sequence[Write], _unchanged: object) -> Saved:
        self.revision += 1
        return Saved(self.revision)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Room:
    def __init__(self) -> None:
        self.clock, self.mirror = Clock(), Mirror(KEYS)
        self.keeper = GroupKeeper(Store(), KEYS, self.mirror, Patience(self.clock))  # type: ignore[arg-type]

    async def look(self, known: dict[str, Node], name: str = "orders") -> float | None:
        one = group(name, shards=1)
        return await self.keeper.look([one], world(nodes=known, groups=[one]))

    def zones(self, known: dict[str, Node]) -> set[str]:
        """Where the copies were placed, nowhere before there are any."""
        found = self.mirror.shards.get(shard_id(1, 0))
        return {known[member.node].zone for member in found.value.ensemble} if found else set()


@pytest.fixture
def room() -> Room:
    return Room()


async def test_a_group_waits_for_the_zone_of_a_node_that_comes(room: Room) -> None:
    known = {**HERE, "n3": TO_COME}
    assert await room.look(known) == TO_COME_S
    assert not room.mirror.shards
    assert room.keeper.trouble == {}, "it is under way, nothing is wrong"
    room.clock.now += 10
    assert await room.look(known) == TO_COME_S - 10
    there = {**HERE, "n3": node("n3", "c")}
    assert await room.look(there) is None
    assert room.zones(there) == {"a", "b", "c"}


async def test_a_node_that_never_comes_is_not_waited_for_for_ever(room: Room) -> None:
    known = {**HERE, "n3": TO_COME}
    await room.look(known)
    room.clock.now += TO_COME_S
    assert await room.look(known) is None
    assert room.zones(known) == {"a", "b"}


async def test_a_group_that_is_gone_is_forgotten(room: Room) -> None:
    known = {**HERE, "n3": TO_COME}
    await room.look(known)
    room.clock.now += TO_COME_S / 2
    assert await room.look(known, "other") == TO_COME_S, "each for itself"
    room.clock.now += TO_COME_S / 2
    assert await room.look(known) == TO_COME_S, "it is made anew"


async def test_too_few_nodes_are_told_at_once(room: Room) -> None:
    known = {**nodes(2, "ab"), "n3": TO_COME}
    assert await room.look(known) is None
    assert room.keeper.trouble["orders"][0] == "NotEnoughNodes"
