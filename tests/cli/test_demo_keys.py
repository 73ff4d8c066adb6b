"""The act of the demo about keys: its judge sees what is wrong, and the whole act runs on nodes of this process."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tidemark
from rich.console import Console
from tidemark import KeyAtNode, KeyExplanation, SeenCell, Stamp
from tidemark_cli.demo import acts, keys
from tidemark_cli.demo.holdings import Acknowledged, Name, Verdict, judge
from tidemark_cli.demo.packages import Change
from tidemark_cli.demo.screen import Screen
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.plane import KeyspaceLimits
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.planes import planes
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_operator.resources.keyspace import Keyspace
from tidemark_wire.channel import open_channel
from tidemark_wire.rings import put_ring
from tidemark_wire.v1 import common_pb2, node_pb2_grpc

A, B, C = (Member(name, "1") for name in "abc")
Held = Mapping[Member, tuple[SeenCell, ...]]
KEPT, GONE = (b"kept", None), (b"set", b"gone")


def cell(ms: int, dead: bool = False, sort: str = "string") -> SeenCell:
    return SeenCell(sort, Stamp(ms, 0, "a", b"12345678"), dead, 0, 1, 7, 0, "", b"")


def explained(name: Name, held: Held, shown: bool, **fields: Any) -> KeyExplanation:
    nodes = tuple(
        KeyAtNode(member, True, "owner", 1, 0, 0, 0, False, cells, 0, (), 0, lacks=False)
        for member, cells in held.items())
    return KeyExplanation(**{
        "key": name[0], "element": name[1], "outcome": "ok", "range": 0, "version": 1, "own": (A, B), "pending": (),
        "nodes": nodes, "winner": None, "shown": shown, "why": "", "now_ms": 0, **fields})


def verdict(
    kept: Held | None = None, gone: Held | None = None, reads: Mapping[Name, bytes] | None = None, shown: bool = True,
    **fields: Any
) -> Verdict:
    """Judge a key that was written and an element that was deleted, where owners hold these cells."""
    acknowledged = Acknowledged()
    acknowledged.note(KEPT, b"old")
    acknowledged.note(KEPT, b"v")
    acknowledged.note(GONE, b"v")
    acknowledged.note(GONE, None)
    found = {
        KEPT: explained(KEPT, kept or {A: (cell(2),), B: (cell(2),)}, shown, **fields),
        GONE: explained(GONE, gone or {each: (cell(3, True, "element"),) for each in (A, B)}, False)}
    right = {KEPT: b"v"}
    return judge(acknowledged, found, [right, right if reads is None else reads])


def test_equal_owners_that_hold_what_was_acknowledged_are_right() -> None:
    assert verdict() == (0, 0, ()) and verdict().good
    one = {each: (cell(2, sort="element"), cell(3, True, "clear")) for each in (A, B)}
    assert verdict(gone=one).good, "a clear hides it"
    assert verdict(kept={A: (cell(2),), B: (cell(2),), C: ()}).good, "c is no owner"


@pytest.mark.parametrize("wrong", [
    {"kept": {A: (cell(2),), B: (cell(1),)}},                  # an owner lacks the later one
    {"kept": {A: (cell(2),), B: ()}}, {"kept": {A: (cell(2),)}}, {"outcome": "unknown"}, {"shown": False},
    {"reads": {}}, {"reads": {KEPT: b"old"}}, {"reads": {KEPT: b"v", (b"x", None): b"never written"}},
    {"gone": {A: (cell(3, True, "element"),), B: ()}},
])
def test_owners_that_differ_or_hold_something_else_diverge(wrong: dict[str, Any]) -> None:
    found = verdict(**wrong)
    assert (1, 0, 1) == (found.diverged, found.resurrected, len(found.examples)) and not found.good


@pytest.mark.parametrize("wrong", [
    {"gone": {A: (cell(3, True, "element"),), B: (cell(2, sort="element"),)}},
    {"gone": {A: (cell(3, sort="element"), cell(2, True, "clear")), B: (cell(3, True, "element"),)}},
    {"reads": {KEPT: b"v", GONE: b"v"}},
])
def test_a_deleted_name_that_an_owner_or_a_read_shows_is_back(wrong: dict[str, Any]) -> None:
    found = verdict(**wrong)
    assert (0, 1) == (found.diverged, found.resurrected) and not found.good
    assert "was deleted, and is visible" in found.examples[0]


def test_an_unknown_operation_may_show_and_a_name_without_an_explanation_diverges() -> None:
    acknowledged = Acknowledged()
    acknowledged.note(KEPT, None)
    acknowledged.note_unknown(KEPT, b"late")
    found = {KEPT: explained(KEPT, {A: (cell(2),), B: (cell(2),)}, True)}
    assert judge(acknowledged, found, [{KEPT: b"late"}]).good
    assert 1 == judge(acknowledged, found, [{KEPT: b"other"}]).diverged
    assert 1 == judge(acknowledged, {}, [{KEPT: b"late"}]).diverged


# --- the act


class Runtime:
    """Nodes of this process that are stopped and started as a local runtime kills and starts processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes: dict[str, Node] = {}
        self.addresses: dict[str, str] = {}
        self.map = common_pb2.ShardMap()
        self.repair_every_ms = 600_000    # at once too, when an owner is back; 0: never
        self._loop = asyncio.get_running_loop()

    async def start(self, name: str) -> None:
        limits = KeyspaceLimits(tick_ms=20, replay_pause_ms=100, repair_every_ms=self.repair_every_ms)
        node = Node(
            Settings(node=name, data=self.directory / name, listen=self.addresses.get(name, "127.0.0.1:0"),
                     metrics_listen="off", disk_reserve_bytes=1 << 20), planes_of=partial(planes, keyspaces=limits))
        await node.start()
        self.nodes[name], self.addresses[name] = node, node.address
        if self.map.version:
            await self._push(node)

    def kill(self, name: str) -> None:
        asyncio.run_coroutine_threadsafe(self.nodes.pop(name).stop(), self._loop).result(20)

    async def push(self, partitions: int) -> None:
        """Push a ring of these nodes, each range with the next three."""
        members = [node.me for node in self.nodes.values()]
        self.map = common_pb2.ShardMap(version=1, nodes=[
            common_pb2.NodeInfo(
                node=node.me.node, incarnation=node.me.incarnation, address=node.address, available=True)
            for node in self.nodes.values()])
        info = self.map.keyspaces.add(
            name=keys.KEYSPACE, keyspace_id=1, overrides_allowed=True, sloppy=True, eventual=True)
        put_ring(info, [
            Range(1, Owners(tuple(members[(index + place) % len(members)] for place in range(3)), Quorum(3, 2, 2)))
            for index in range(partitions)])
        for node in self.nodes.values():
            await self._push(node)

    async def _push(self, node: Node) -> None:
        async with open_channel(node.address) as opened:
            await node_pb2_grpc.ControlStub(opened).PushShardMap(self.map, timeout=20)


@pytest.fixture
async def runtime(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    runtime = Runtime(tmp_path)
    runtime.repair_every_ms = getattr(request, "param", runtime.repair_every_ms)
    async with AsyncExitStack() as stack:
        for name in "abcd":
            await runtime.start(name)
        await runtime.push(4)
        yield runtime
        for node in runtime.nodes.values():
            stack.push_async_callback(node.stop)


async def act(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> tuple[keys.Findings, str]:
    async def there_already(_service: Any, _runtime: Any, name: str, **spec: Any) -> None:
        created = Keyspace.model_validate_json(json.dumps({
            "apiVersion": "tidemark.dev/v1alpha1", "kind": "Keyspace", "metadata": {"name": name},
            "spec": {"clusterRef": {"name": "demo"}, **spec}}))
        assert created.spec.replication.replicas == keys.COPIES

    monkeypatch.setattr(acts, "create_keyspace", there_already)
    changes = [Change(b"%d" % (number % 30), b"v%d" % number) for number in range(60)]
    text = io.StringIO()
    async with await tidemark.connect(list(runtime.addresses.values())) as client:
        screen = Screen(Console(file=text, width=200))
        found = await keys.run(SimpleNamespace(), runtime, client, changes, screen)  # type: ignore[arg-type]
    return found, text.getvalue()


@pytest.mark.servers
async def test_owners_that_were_away_are_equal_again_and_nothing_deleted_is_back(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, text = await act(runtime, monkeypatch)
    assert found.good and (0, 0, ()) == found.verdict, text
    assert (30, 10, 2) == (found.keys, found.deleted, len(found.killed)) and found.sloppy and found.hints
    assert "keyspace_diverged: 0, resurrected: 0" in text and f"SIGKILL to {' and '.join(found.killed)}" in text


@pytest.mark.servers
@pytest.mark.parametrize("runtime", [0], indirect=True)
async def test_without_repair_the_act_finds_owners_that_differ(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "HEAL_S", 0.1)
    found, text = await act(runtime, monkeypatch)
    assert not found.good and found.verdict.diverged + found.verdict.resurrected, text
    assert f"keyspace_diverged: {found.verdict.diverged}, resurrected: {found.verdict.resurrected}" in text
