"""Settings: each shard is told once and on every change, whichever comes first, the map or the shard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from node_harness import GROUP_ID, shard_map
from tidemark_core.base.ids import Member, ShardId, shard_id
from tidemark_core.limbo.settings import Rollback, SynchroSettings
from tidemark_core.replication.settings import Configure, CopySettings, DocumentSettings, RetentionSettings
from tidemark_node.routing import Routing
from tidemark_node.synchro import InvalidSettings, Synchro, settings_of

NODES = [(Member("a", "i"), "h:1"), (Member("b", "i"), "h:2"), (Member("c", "i"), "h:3")]
FIRST, SECOND = shard_id(GROUP_ID, 0), shard_id(GROUP_ID, 1)


class Rig:
    """Synchro with a driver that only remembers what was posted."""

    def __init__(self) -> None:
        self.driver: Any = SimpleNamespace(
            core=SimpleNamespace(log=SimpleNamespace(shards={})), reloading=False,
            post=lambda event: self.told.append(event)
        )
        self.told: list[Configure] = []
        self.routing = Routing()
        self.synchro = Synchro(self.driver, self.routing)

    def push(self, version: int, **group: Any) -> list[Configure]:
        self.routing.push(shard_map(NODES, "a", version, shards=2, **group))
        return self.tell()

    def hold(self, *shards: ShardId) -> list[Configure]:
        self.driver.core.log.shards.update(dict.fromkeys(shards))
        return self.tell()

    def tell(self) -> list[Configure]:
        """Return what is told now and was not before."""
        self.told.clear()
        self.synchro.tell()
        return list(self.told)


def test_map_says_all_of_a_group():
    zones = {"a": "east", "c": "west"}
    pushed = shard_map(
        NODES, "a", 1, zones=zones, synchro_quorum="N-1", quorum_timeout_ms=700, rollback="Immediate", synchro_zones=2,
        retention_ms=60_000, retention_bytes=1 << 40, retention_bytes_hard=1 << 41,
    )
    settings = SynchroSettings("N-1", 700, Rollback.IMMEDIATE, 2, (("a", "east"), ("c", "west")))
    assert {FIRST: Configure(FIRST, settings, RetentionSettings(60_000, 1 << 40, 1 << 41))} == settings_of(pushed)


def test_u52_u70_map_says_how_long_deletes_and_pins_are_kept():
    pushed = shard_map(NODES, "a", 1, tombstone_ms=60_000, pinned_bytes_max=1 << 33)
    assert settings_of(pushed)[FIRST].documents == DocumentSettings(60_000, 1 << 33)
    with pytest.raises(InvalidSettings, match=r"groups\[orders\]\.tombstone_ms"):
        settings_of(shard_map(NODES, "a", 1, tombstone_ms=1 << 60))


def test_map_that_says_nothing_means_the_defaults():
    assert {FIRST: Configure(FIRST, SynchroSettings())} == settings_of(shard_map(NODES, "a", 1))


def test_zones_are_told_whether_the_quorum_asks_for_them_or_not():
    settings = SynchroSettings(zone_of=(("a", "east"),))
    assert {FIRST: Configure(FIRST, settings)} == settings_of(shard_map(NODES, "a", 1, zones={"a": "east"}))


@pytest.mark.parametrize("quorum", ["N+", "2;", "N/(N-7)", "__import__", "9" * 65])
def test_formula_that_cannot_be_is_named(quorum: str):
    with pytest.raises(InvalidSettings, match=r"groups\[orders\]\.synchro_quorum"):
        settings_of(shard_map(NODES, "a", 1, synchro_quorum=quorum))


def test_retention_beyond_a_hundred_years_is_named():
    with pytest.raises(InvalidSettings, match=r"groups\[orders\]\.retention_ms"):
        settings_of(shard_map(NODES, "a", 1, retention_ms=1 << 63))


def test_a_hard_bound_below_the_other_is_named():
    with pytest.raises(InvalidSettings, match=r"groups\[orders\]\.retention_bytes_hard"):
        settings_of(shard_map(NODES, "a", 1, retention_bytes=5, retention_bytes_hard=4))


def test_map_says_when_readers_are_given_a_record():
    def told(**group: int) -> CopySettings:
        return settings_of(shard_map(NODES, "a", 1, **group))[FIRST].copies

    assert CopySettings() == told() == told(sync_leaders=1)
    assert CopySettings(sync_leaders=2, leaders=3) == told(sync_leaders=2, leaders=3)


@pytest.mark.parametrize(("group", "field"), [
    ({"sync_leaders": 17}, "sync_leaders"), ({"leaders": 17}, "leaders"),
    ({"sync_leaders": 3, "leaders": 2}, "sync_leaders"),
])
def test_copies_that_cannot_be_are_named(group: dict[str, int], field: str):
    with pytest.raises(InvalidSettings, match=rf"groups\[orders\]\.{field}"):
        settings_of(shard_map(NODES, "a", 1, **group))


def test_retention_that_changed_is_told():
    rig = Rig()
    rig.hold(FIRST)
    assert [Configure(FIRST, SynchroSettings(), RetentionSettings(1_000))] == rig.push(1, retention_ms=1_000)
    assert [] == rig.push(2, retention_ms=1_000)
    assert [Configure(FIRST, SynchroSettings(), RetentionSettings(1_000, 5))] == rig.push(
        3, retention_ms=1_000, retention_bytes=5
    )


def test_shard_that_comes_after_the_map_is_told():
    rig = Rig()
    assert [] == rig.push(1, synchro_quorum="N")
    assert [Configure(FIRST, SynchroSettings("N"))] == rig.hold(FIRST)
    assert [Configure(SECOND, SynchroSettings("N"))] == rig.hold(SECOND)
    assert [] == rig.tell()


def test_map_that_comes_after_the_shard_is_told():
    rig = Rig()
    assert [] == rig.hold(FIRST, ShardId(99))
    assert [Configure(FIRST, SynchroSettings("N"))] == rig.push(1, synchro_quorum="N")


def test_only_what_changed_is_told_again():
    rig = Rig()
    rig.hold(FIRST, SECOND)
    assert 2 == len(rig.push(1, synchro_quorum="2"))
    assert [] == rig.push(2, synchro_quorum="2")
    assert [FIRST, SECOND] == [event.shard for event in rig.push(3, synchro_quorum="3")]
    assert [] == rig.push(2, synchro_quorum="2")                    # an old map
    moved = {"a": "east", "b": "west"}
    assert 2 == len(rig.push(4, synchro_quorum="3", zones=moved))   # reading orders go by zones too
    assert 2 == len(rig.push(5, synchro_quorum="3", zones=moved, synchro_zones=2))
    assert 2 == len(rig.push(6, synchro_quorum="3", zones={"a": "east"}, synchro_zones=2))


def test_shards_that_were_loaded_again_are_told_again():
    rig = Rig()
    rig.hold(FIRST)
    rig.push(1, synchro_quorum="N")
    rig.driver.reloading = True
    assert [] == rig.push(2, synchro_quorum="2")                    # what is posted now would be lost
    rig.driver.core, rig.driver.reloading = SimpleNamespace(log=SimpleNamespace(shards={FIRST: None})), False
    assert [Configure(FIRST, SynchroSettings("2"))] == rig.tell()
