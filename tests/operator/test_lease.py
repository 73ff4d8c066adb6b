"""ActivityLease: one of several is active; the next takes over when it leaves; etcd's silence changes nothing."""

from __future__ import annotations

import asyncio

from fake_node import until
from tidemark_operator.etcd import EtcdStore
from tidemark_operator.lease import ActivityLease


def lease(store: EtcdStore, name: str, seen: list[tuple[str, bool]]) -> ActivityLease:
    return ActivityLease(store, "/t/operator", name, lambda active: seen.append((name, active)), ttl_s=2)


async def test_one_is_active_and_the_next_follows_when_it_leaves(store: EtcdStore) -> None:
    seen: list[tuple[str, bool]] = []
    one, two = lease(store, "one", seen), lease(store, "two", seen)
    one.start()
    await until(lambda: one.active)
    two.start()
    await asyncio.sleep(0.2)
    assert not two.active
    await one.stop()
    two.look_now()
    await until(lambda: two.active, 2)
    assert seen == [("one", True), ("two", True)]
    await two.stop()


async def test_the_holder_goes_on_while_etcd_is_away(store: EtcdStore, etcd) -> None:
    seen: list[tuple[str, bool]] = []
    one = lease(store, "one", seen)
    one.start()
    await until(lambda: one.active)
    etcd.kill()
    await asyncio.sleep(3)  # longer than the lease
    assert one.active
    etcd.start()
    await etcd.ready()
    await asyncio.sleep(1)
    assert one.active and seen == [("one", True)]
    await one.stop()


async def test_a_holder_whose_key_another_took_steps_back(store: EtcdStore) -> None:
    seen: list[tuple[str, bool]] = []
    one = lease(store, "one", seen)
    one.start()
    await until(lambda: one.active)
    await store.revoke_lease(one._lease)
    assert await store.get("/t/operator") is None
    await store.put("/t/operator", b"two", expected=0)
    one.look_now()
    await until(lambda: not one.active)
    assert seen == [("one", True), ("one", False)]
    await one.stop()
