"""Reporter: what it says to operators and when; links that a node keeps with its neighbours (O43)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tidemark_core.base.ids import Member, shard_id
from tidemark_core.replication.messages import Reach, Unheard
from tidemark_node.metrics import Metrics
from tidemark_node.peers import Links
from tidemark_node.reach import Reporter
from tidemark_node.routing import Routing
from tidemark_wire.v1 import common_pb2

A, B, C, D = (Member(name, f"{name}-disk") for name in "abcd")
SHARD = shard_id(1, 0)
SILENCE_MS = 3_000


def shard_map(*ensembles: tuple[str, ...], version: int = 1, silence_ms: int = 0) -> common_pb2.ShardMap:
    pushed = common_pb2.ShardMap(version=version, quorum_silence_ms=silence_ms)
    for each in (A, B, C, D):
        pushed.nodes.add(node=each.node, incarnation=each.incarnation, address="127.0.0.1:1")
    group = pushed.groups.add(name="orders", group_id=1)
    for ensemble in ensembles:
        group.shards.add(ensemble=ensemble)
    return pushed


class Desk:
    """A reporter of node b whose core says `reach`; what it told operators is in `said`."""

    def __init__(self) -> None:
        self.reach = Reach((A,), ())
        self.said: list[Reach] = []
        self.held: list[set[Member]] = []
        self.routing = Routing()
        core: Any = SimpleNamespace(log=SimpleNamespace(reach=lambda now_ms, silence_ms: self.reach))
        driver: Any = SimpleNamespace(core=core, now_ms=lambda: 0, open=True)
        links: Any = SimpleNamespace(
            me=B, hold=lambda peers: self.held.append(set(peers)),
            tell_operators=lambda message, version: self.said.append(message))
        self.reporter = Reporter(driver, links, self.routing)

    def look(self, *unheard: Unheard) -> int:
        self.reach = Reach((A,), (), unheard)
        before = len(self.said)
        self.reporter.look(SILENCE_MS)
        return len(self.said) - before


async def test_o43_news_is_told_at_once_and_the_rest_now_and_then(monkeypatch: Any) -> None:
    desk, now_s = Desk(), [100.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0], raising=False)
    assert desk.look() == 1
    assert desk.look() == 0, "nothing new"
    assert desk.look(Unheard(SHARD, 1, (C,))) == 1
    assert desk.look(Unheard(SHARD, 1, (C,))) == 0
    assert desk.look(Unheard(SHARD, 1, (A, C), 10)) == 1
    assert desk.look(Unheard(SHARD, 1, (A, C), 510)) == 0
    assert desk.look(Unheard(SHARD, 1, (A, C), SILENCE_MS)) == 1, "the silence is long enough now"

    now_s[0] += SILENCE_MS / 3_000
    assert desk.look(Unheard(SHARD, 1, (A, C), SILENCE_MS + 10)) == 1, "an operator may be new"


async def test_o43_neighbours_are_those_that_share_a_shard() -> None:
    desk = Desk()
    desk.look()
    desk.routing.push(shard_map(("a", "b"), ("c", "d")))
    desk.look()
    desk.routing.push(shard_map(("b", "d"), ("c", "d"), version=2))
    desk.look()

    assert desk.held == [set(), {A}, {D}]


async def test_o43_clients_do_not_see_the_silence_of_a_map() -> None:
    routing = Routing()
    routing.push(shard_map(silence_ms=700))

    assert (routing.quorum_silence_ms, routing.map.quorum_silence_ms) == (700, 0)


async def test_o43_of_two_neighbours_one_dials_at_once_and_the_other_when_nobody_has() -> None:
    driver: Any = SimpleNamespace(post=lambda event: None, room=None)
    routing = Routing()
    routing.push(shard_map(("a", "b", "c")))
    links = Links(B, "127.0.0.1:2", driver, routing, Metrics())

    def dialed() -> set[str]:
        return {each["peer"] for each in links.describe()}

    links.hold({A, C})
    assert dialed() == {str(C)}
    links.hold({A, C})
    assert dialed() == {str(A), str(C)}
    await links.close()
