"""The act of the demo about keys: its judge sees what is wrong, and the whole act runs on nodes of this process."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tidemark
from rich.console import Console
from tidemark import KeyAtNode, KeyExplanation, Keyspace, SeenCell, Stamp
from tidemark_cli.demo import acts, keys
from tidemark_cli.demo.holdings import Acknowledged, Name, Verdict, judge
from tidemark_cli.demo.packages import Change
from tidemark_cli.demo.screen import Screen
from tidemark_core.base.ids import Member
from tidemark_operator.resources import keyspace as resource

from tests.keyspace_nodes import KeyspaceNodes

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


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[KeyspaceNodes]:
    nodes = KeyspaceNodes(tmp_path)
    try:
        await nodes.up("abcd", keys.KEYSPACE, sloppy=True)
        yield nodes
    finally:
        await nodes.down()


async def act(runtime: KeyspaceNodes, monkeypatch: pytest.MonkeyPatch) -> tuple[keys.Findings, str]:
    async def there_already(_service: Any, _runtime: Any, name: str, **spec: Any) -> None:
        created = resource.Keyspace.model_validate_json(json.dumps({
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
    runtime: KeyspaceNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, text = await act(runtime, monkeypatch)
    assert found.good and (0, 0, ()) == found.verdict, text
    assert (30, 10, 2) == (found.keys, found.deleted, len(found.killed)) and found.sloppy and found.hints
    assert "keyspace_diverged: 0, resurrected: 0" in text and f"SIGKILL to {' and '.join(found.killed)}" in text


@pytest.mark.servers
async def test_the_act_counts_what_owners_hold_beside_what_was_acknowledged(
    runtime: KeyspaceNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer puts a deleted key back, writes over a key, and adds one."""
    heal = keys._heal

    async def healed(keyspace: Keyspace, names: Sequence[Name]) -> None:
        await heal(keyspace, names)
        for key in (b"0", b"1", b"new"):
            await keyspace.set(key, b"beside", w=keys.COPIES)

    monkeypatch.setattr(keys, "_heal", healed)
    found, text = await act(runtime, monkeypatch)
    assert (2, 1) == (found.verdict.diverged, found.verdict.resurrected) and not found.good
    assert "keyspace_diverged: 2, resurrected: 1" in text
    for example in ("(b'0', None) was deleted, and is visible at ", "(b'new', None) is there", "(b'1', None) is not"):
        assert example in text


@pytest.mark.servers
async def test_owners_that_stay_different_are_counted_when_the_time_to_heal_is_over(
    runtime: KeyspaceNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    heal = keys._heal

    async def healed(keyspace: Keyspace, names: Sequence[Name]) -> None:
        await heal(keyspace, names)
        monkeypatch.setattr(keys, "HEAL_S", 0.1)
        monkeypatch.setattr(KeyExplanation, "equal", property(lambda found: found.key != b"1"))
        await heal(keyspace, names)

    monkeypatch.setattr(keys, "_heal", healed)
    found, _ = await act(runtime, monkeypatch)
    assert (1, 0, ("owners of (b'1', None) differ",)) == found.verdict
