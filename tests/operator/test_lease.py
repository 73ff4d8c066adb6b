"""ActivityLease: one of several is active; the next takes over when it leaves; etcd's silence changes nothing."""

from __future__ import annotations

from tidemark_operator.etcd import EtcdStore, Saved
from tidemark_operator.lease import ActivityLease

from tests.waiting import remains, until

LEASE_S = 4
"""On a slow machine the holder renews late, but not so late."""


def lease(store: EtcdStore, name: str, seen: list[tuple[str, bool]]) -> ActivityLease:
    return ActivityLease(store, "/t/operator", name, lambda active: seen.append((name, active)), ttl_s=LEASE_S)


async def test_one_is_active_and_the_next_follows_when_it_leaves(store: EtcdStore) -> None:
    seen: list[tuple[str, bool]] = []
    one, two = lease(store, "one", seen), lease(store, "two", seen)
    one.start()
    await until(lambda: one.active)
    two.start()
    await remains(lambda: one.active and not two.active)
    await one.stop()
    left = await store.get("/t/operator")
    assert left is None or left.value == b"two", "given back, not left to expire"
    two.look_now()
    await until(lambda: two.active)
    assert seen == [("one", True), ("two", True)]
    await two.stop()


async def test_the_holder_goes_on_while_etcd_is_away(store: EtcdStore, etcd) -> None:
    seen: list[tuple[str, bool]] = []
    one = lease(store, "one", seen)
    one.start()
    await until(lambda: one.active)
    etcd.kill()
    await remains(lambda: one.active, for_s=1.5 * LEASE_S)
    etcd.start()
    await etcd.ready()
    await remains(lambda: one.active and seen == [("one", True)], for_s=1)
    await one.stop()


async def test_a_holder_whose_key_another_took_steps_back(store: EtcdStore) -> None:
    seen: list[tuple[str, bool]] = []
    one = lease(store, "one", seen)
    one.start()
    await until(lambda: one.active)
    held = await store.get("/t/operator")
    assert held is not None
    assert isinstance(await store.put("/t/operator", b"two", expected=held.revision), Saved)
    await store.revoke_lease(one._lease)   # after the write: meanwhile `one` could take a key that is free
    one.look_now()
    await until(lambda: not one.active)
    assert seen == [("one", True), ("one", False)]
    await one.stop()
