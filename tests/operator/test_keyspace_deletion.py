"""The deletion of keyspaces: records, then every node, then the object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from fake_node import FakeNode
from operator_views import node, nodes, to_come
from test_ring_keeper import CARTS, KEYS, Room
from test_service import CLUSTER, service, three
from tidemark_core.base.ids import KEYSPACE_PLANE, Address, Member
from tidemark_core.optimistic.deleting import ForgetAsked, Forgotten
from tidemark_operator.etcd import OPERATIONS_MAX, Conflict, Saved, Unavailable
from tidemark_operator.etcd import StoreUnavailable as Away
from tidemark_operator.keyspace_deletion import SAY_AGAIN_S, KeyspaceDeletion
from tidemark_operator.metadata import NodeLife
from tidemark_operator.model import Node
from tidemark_operator.service import OperatorService

from tests.waiting import until

__all__ = ["service", "three"]  # fixtures


class Deleting(Room):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[Member, Any]] = []
        self.succeed()

    def succeed(self) -> None:
        """Let another operator go on."""
        self.deletion = KeyspaceDeletion(
            self.store, KEYS, self.mirror,  # type: ignore[arg-type]
            lambda address, member, message: self.sent.append((member, message)))

    async def delete(self, known: Mapping[str, Node]) -> list[str]:
        """Look; return the nodes that were asked."""
        self.sent.clear()
        self.again_s = await self.deletion.look(known)
        return [member.node for member, _ in self.sent]

    def answer(self, *names: str, keyspace: int = 7) -> None:
        for name in names:
            self.deletion.received(node(name).member, Forgotten(keyspace))  # type: ignore[arg-type]

    @property
    def left(self) -> str:
        return self.deletion.left(self.mirror.keyspaces["carts"].value)


@pytest.fixture
async def room() -> Deleting:
    """Return a room with a keyspace that is to go, and one that stays."""
    room = Deleting()
    room.keyspace(partitions=256)
    room.keyspace("other", 8)
    await room.look(nodes(3))
    room.keyspace(partitions=256, more={"detached": True, "deleting": True})
    return room


async def test_d81_a_keyspace_goes_with_its_ranges_and_nothing_else(room: Deleting) -> None:
    assert room.left == "256 ranges are left."
    room.store.next = [Saved(room.store.revision + 1), Conflict()]
    assert await room.delete(nodes(3)) == [], "another operator deletes too, and a record may be left"
    assert await room.delete(nodes(3)) == ["n1", "n2", "n3"] and room.again_s == SAY_AGAIN_S
    assert {message for _, message in room.sent} == {ForgetAsked(7)}
    assert room.left == "Its data is left on n1, n2, n3."
    room.answer("n1", "n2")
    assert await room.delete(nodes(3)) == ["n3"] and "carts" in room.mirror.keyspaces
    room.answer("n3")
    assert await room.delete(nodes(3)) == [] and room.again_s is None
    assert set(room.mirror.keyspaces) == {"other"} and {unit >> 32 for unit in room.ranges} == {8}
    assert all(len(writes) + len(unchanged) <= OPERATIONS_MAX for writes, unchanged in room.store.transactions)


async def test_d81_a_successor_asks_every_node_again(room: Deleting) -> None:
    await room.delete(nodes(3))
    room.answer("n1", "n2")
    room.succeed()
    assert await room.delete(nodes(3)) == ["n1", "n2", "n3"]
    room.answer("n1", "n2", "n3", keyspace=8)
    assert await room.delete(nodes(3)) == ["n1", "n2", "n3"], "that was about another keyspace"


@pytest.mark.parametrize(("other", "waits"), [
    (node("n4", up=False), True), (to_come("n4"), True), (node("n4", life=NodeLife.LEAVES, up=False), True),
    (node("n4", life=NodeLife.REMOVED, up=False), False), (replace(to_come("n4"), address=""), False),
    (node("n4", wire_version=4), False)])
async def test_d81_a_node_that_may_come_back_is_waited_for(room: Deleting, other: Node, waits: bool) -> None:
    known = {**nodes(3), "n4": other}
    await room.delete(known)
    room.answer("n1", "n2", "n3")
    assert await room.delete(known) == []
    assert ("carts" in room.mirror.keyspaces) is waits
    assert not waits or room.left == "Its data is left on n4."


async def test_d81_a_node_on_another_disk_is_asked_again(room: Deleting) -> None:
    """It may be an older copy of the disk."""
    await room.delete(nodes(3))
    room.answer("n1", "n2", "n3")
    other = replace(node("n3"), member=Member("n3", "another-life"))
    assert await room.delete({**nodes(2), "n3": other}) == ["n3"]


async def test_a_keyspace_without_a_number_has_no_data(room: Deleting) -> None:
    room.keyspace("new", 0, more={"detached": True, "deleting": True})
    await room.delete(nodes(3))
    assert "new" not in room.mirror.keyspaces


async def test_deletion_waits_for_etcd(room: Deleting) -> None:
    room.store.next = [Unavailable("away")]
    with pytest.raises(Away):
        await room.delete(nodes(3))


async def test_d81_nodes_are_asked_by_their_link(service: OperatorService, three: list[FakeNode]) -> None:
    await service.objects.apply(CLUSTER + "---" + CARTS % ", deletionPolicy: Delete")
    await until(lambda: any(each.name == "carts" for each in three[0].newest_map.keyspaces))
    three[2].copies = False     # it does not answer
    await service.objects.delete("Keyspace", "carts")
    at = Address(KEYSPACE_PLANE, 1 << 32).id
    await until(lambda: any(each[::2] == (at, ForgetAsked(1)) for each in three[2].received))
    assert "carts" in service.mirror.keyspaces and not service.mirror.ranges
    three[2].copies = True
    await until(lambda: not service.mirror.keyspaces)
