"""Space of dropped payloads: it comes back though nothing is written any more, and also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from store_writer import chain_of
from tidemark_core.base.effects import DropBefore, DropPayloads, Persist, PutEntry, Space, Wipe
from tidemark_core.base.ids import ShardId, of_shard
from tidemark_node import store as store_module
from tidemark_node.dropped import Dropped
from tidemark_node.families import FAMILIES
from tidemark_node.metrics import Metrics
from tidemark_node.reclaim import Reclaimer
from tidemark_node.store import Store, open_store
from tidemark_node.store_errors import StoreFailed

from tests.waiting import remains, until

S1, S2 = ShardId(1), ShardId(2)
AT = of_shard(S1)
PAYLOAD_BYTES = 64 << 10
ENTRIES = 160
EVERYTHING = 1 << 30


class FakeGuard:
    """A disk whose space the test says."""

    short = False
    space = Space.FREE

    def free_bytes(self) -> int:
        return 0


class FakeDriver:
    """Runs the work in a thread, as the driver does."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.open = True
        self.guard = FakeGuard()
        self.ends: dict[ShardId, int] = {}

    def trimmed(self) -> dict[ShardId, int]:
        return self.ends

    async def reclaim(self, work: Callable[[Store], int]) -> int:
        return await asyncio.to_thread(work, self.store)


def filled(tmp_path: Path) -> Store:
    """A store with 10 MiB in each of two shards, in tables."""
    store = open_store(tmp_path, "a")
    entries = chain_of(ENTRIES, payload_bytes=PAYLOAD_BYTES)
    for shard in (S1, S2):
        store.apply([Persist(of_shard(shard), tuple(map(PutEntry, entries)))])
    store.close()
    return open_store(tmp_path, "a")


async def given_back(store: Store, whole: int, share: float) -> None:
    await until(lambda: store.sizes()["payloads", "tables"] <= share * whole, timeout_s=60)


@pytest.mark.parametrize("restart", [False, True])
async def test_space_comes_back_though_nothing_more_is_written(tmp_path: Path, restart: bool):
    store = filled(tmp_path)
    whole = store.sizes()["payloads", "tables"]
    assert whole >= 2 * ENTRIES * PAYLOAD_BYTES
    store.apply([Persist(AT, (DropPayloads(0, 59),)), Persist(AT, (DropPayloads(100, 139),))])
    store.sync()
    if restart:
        store.close()
        store = open_store(tmp_path, "a")
    assert store.sizes()["payloads", "tables"] > 0.99 * whole
    metrics = Metrics()
    reclaimer = Reclaimer(FakeDriver(store), metrics, 0, 1)  # type: ignore[arg-type]
    reclaimer.start()
    await given_back(store, whole, 0.7)     # 100 of 320 are gone
    await until(lambda: store.dropped.known(S1) is None, timeout_s=60)
    await reclaimer.stop()
    held = [entry.held for entry in store.read(S1, 0, ENTRIES - 1, EVERYTHING).entries]
    assert [False] * 60 + [True] * 40 + [False] * 40 + [True] * 20 == held
    assert all(entry.held for entry in store.read(S2, 0, ENTRIES - 1, EVERYTHING).entries)
    assert metrics.registry.get_sample_value("tidemark_store_reclaims_total") == 1
    store.close()
    store = open_store(tmp_path, "a")
    assert store.dropped.known(S1) is None, "what is done is not done again after a restart"
    store.close()


async def test_a_large_range_is_done_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_module, "COMPACTION_BYTES", 4 << 20)
    store = open_store(tmp_path, "a", families=[replace(family, table_bytes=1 << 20) for family in FAMILIES])
    for number, entry in enumerate(chain_of(ENTRIES, payload_bytes=PAYLOAD_BYTES)):
        store.apply([Persist(AT, (PutEntry(entry),))])
        if number % 16 == 0:
            store._families["log"].flush()
    store.compact(S1, 0, ENTRIES - 1)       # now there are tables of a MiB
    store.apply([Persist(AT, (DropPayloads(0, ENTRIES - 1),))])
    ends: list[int] = []
    taken = store.dropped.take(S1)
    assert taken == (0, ENTRIES - 1)
    first = 0
    while first < ENTRIES:
        ends.append(store.compact(S1, first, ENTRIES - 1))
        assert ends[-1] >= first
        first = ends[-1] + 1
    assert len(ends) > 1 and ends[-1] == ENTRIES - 1
    assert store.sizes()["payloads", "tables"] < 1 << 20
    store.close()


async def test_a_disk_that_fails_is_tried_again_later(tmp_path: Path):
    class Failing(FakeDriver):
        failures = 2

        async def reclaim(self, work: Callable[[Store], int]) -> int:
            if self.failures:
                self.failures -= 1
                raise StoreFailed("no space", no_space=True)
            return await super().reclaim(work)

    store = filled(tmp_path)
    whole = store.sizes()["payloads", "tables"]
    store.apply([Persist(AT, (DropPayloads(0, ENTRIES - 1),))])
    reclaimer = Reclaimer(Failing(store), Metrics(), 0, 1)  # type: ignore[arg-type]
    reclaimer.start()
    await given_back(store, whole, 0.6)
    await reclaimer.stop()
    store.close()


async def test_little_is_left_to_the_database_until_it_has_become_much(tmp_path: Path):
    store = filled(tmp_path)
    looks: list[int] = []

    class Counting(FakeDriver):
        async def reclaim(self, work: Callable[[Store], int]) -> int:
            looks.append(await super().reclaim(work))
            return looks[-1]

    reclaimer = Reclaimer(Counting(store), Metrics(), 0, 20 * PAYLOAD_BYTES)  # type: ignore[arg-type]
    store.apply([Persist(AT, (DropPayloads(0, 9),))])
    whole = store.sizes()["payloads", "tables"]
    reclaimer.start()
    await until(lambda: looks, "the first look", 60)
    store.apply([Persist(AT, (DropPayloads(10, 14),))])
    await until(lambda: len(looks) >= 2, "the second look", 60)
    assert looks == [10 * PAYLOAD_BYTES, 5 * PAYLOAD_BYTES], "only what is new is counted"
    assert store.sizes()["payloads", "tables"] == whole
    store.apply([Persist(AT, (DropPayloads(30, 60),))])
    await given_back(store, whole, 0.9)
    await reclaimer.stop()
    store.close()


def test_what_is_dropped_while_a_range_is_worked_on_makes_another_one():
    dropped = Dropped()
    dropped.add(S1, 10, 19)
    dropped.add(S1, 30, 39)
    assert dropped.take(S1) == (10, 39) and dropped.take(S1) is None and dropped.take(S2) is None
    dropped.add(S1, 50, 59)
    assert dropped.known(S1) == (10, 59)    # a restart now does all of it again
    dropped.put_back(S1, 30)
    assert dropped.take(S1) == (30, 59)
    dropped.add(S1, 5, 6)
    dropped.put_back(S1, 60)
    assert dropped.known(S1) == (5, 6) and dropped.shards() == [S1]


async def test_k21_trimmed_entries_give_their_space_back_when_the_disk_is_short(tmp_path: Path):
    """Tables, headers and the write-ahead log; a shard that was deleted counts too."""
    store = filled(tmp_path)
    whole = on_disk(store)
    store.apply([Persist(AT, (DropBefore(140),)), Persist(of_shard(S2), (Wipe(),))])
    store.sync()
    driver, metrics = FakeDriver(store), Metrics()
    driver.ends = {S1: 140, S2: 1 << 63}
    reclaimer = Reclaimer(driver, metrics, 0, 1)  # type: ignore[arg-type]
    reclaimer.start()
    await remains(lambda: on_disk(store) >= 0.9 * whole, "with space enough the database is left alone", 0.5)
    driver.guard.short = True
    await until(lambda: on_disk(store) < 0.1 * whole, timeout_s=60)
    await until(lambda: metrics.registry.get_sample_value("tidemark_store_reclaim_seconds_total"))
    done = metrics.registry.get_sample_value("tidemark_store_reclaims_total")
    await remains(
        lambda: metrics.registry.get_sample_value("tidemark_store_reclaims_total") == done, "it is done once", 0.5)
    await reclaimer.stop()
    kept = store.read(S1, 140, ENTRIES - 1, EVERYTHING).entries
    assert ENTRIES - 140 == len(kept) and all(entry.held for entry in kept)
    store.close()


def on_disk(store: Store) -> int:
    """Bytes that the files of the store take of the file system."""
    return sum(path.stat().st_blocks * 512 for path in store.path.iterdir() if path.is_file())
