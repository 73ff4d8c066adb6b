"""Rings in a pushed map: wrong ones are refused, clients get them without access lists, the core gets settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.plane import Settle
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_node.control import Control
from tidemark_node.rings import Rings
from tidemark_node.routing import Routing
from tidemark_wire.rings import InvalidRing, put_ring, put_settings, ring_of
from tidemark_wire.v1 import common_pb2

RING = (Range(1, Owners((Member("n1", "a"), Member("n2", "b")), Quorum(2, 2, 1))),)


def pushed(version: int) -> common_pb2.ShardMap:
    shard_map = common_pb2.ShardMap(version=version)
    info = shard_map.keyspaces.add(name="carts", keyspace_id=1, access=common_pb2.GroupAccess(readers=["rita"]))
    put_ring(info, RING)
    return shard_map


def test_clients_get_rings_without_access_lists() -> None:
    routing = Routing()
    routing.push(pushed(1))
    [found] = common_pb2.ShardMap.FromString(routing.map_bytes).keyspaces
    assert ring_of(found) == RING and not found.HasField("access")


class Aborted(Exception):
    """A handler ended its call."""


class Context:
    async def abort(self, code: grpc.StatusCode, message: str, _trailing: Any) -> None:
        raise Aborted(code, message)


async def test_a_map_with_a_wrong_ring_is_refused_and_the_one_before_stays() -> None:
    routing = Routing()
    routing.push(pushed(1))
    rings = Rings(SimpleNamespace(), routing)  # type: ignore[arg-type]
    control: Any = SimpleNamespace(_settings=SimpleNamespace(cluster=""), _routing=routing, _rings=rings)
    wrong = pushed(2)
    wrong.keyspaces[0].ranges[0].own.w = 3
    with pytest.raises(Aborted, match=r"keyspaces\[carts\].ranges\[0\].own.w: 3 is not in 1 to 2"):
        await Control.push_shard_map(control, wrong, Context())
    assert routing.map.version == 1


class Driver:
    """Takes events for a core that it holds."""

    def __init__(self) -> None:
        self.reloading, self.posted = False, list[Any]()
        self.start()

    def start(self) -> None:
        self.core = SimpleNamespace(me=Member("n1", "a"))

    def post(self, event: Any) -> None:
        self.posted.append(event)

    def settled(self) -> list[Settle]:
        found = [each for each in self.posted if isinstance(each, Settle)]
        self.posted.clear()
        return found


def test_the_core_is_given_the_settings_of_a_keyspace_once_and_after_each_change() -> None:
    driver, routing = Driver(), Routing()
    rings = Rings(driver, routing)  # type: ignore[arg-type]

    def push(version: int, *settings: KeyspaceSettings) -> list[Settle]:
        new = pushed(version)
        for each in settings:
            put_settings(new.keyspaces[0], each)
        rings.check(new)
        routing.push(new)
        rings.tell()
        return driver.settled()

    assert push(1) == [], "an older operator says none"
    short = KeyspaceSettings(grace_ms=5)
    assert push(2, short) == [Settle(1, short)]
    assert push(3, short) == []
    assert push(4, KeyspaceSettings()) == [Settle(1, KeyspaceSettings())]
    driver.start()
    rings.tell()
    assert driver.settled() == [Settle(1, KeyspaceSettings())], "the core is another one"
    wrong = pushed(5)
    put_settings(wrong.keyspaces[0], KeyspaceSettings(grace_ms=0))
    with pytest.raises(InvalidRing, match=r"keyspaces\[carts\].settings.grace_ms: 0 is not in"):
        rings.check(wrong)
