"""Payloads on 3 of 5 members: readers see everything once, disks hold less, and no fault or change of members costs a
record.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import tidemark
from tidemark import Client

from tests.waiting import until

from .cluster import Cluster, condition, offset_of
from .wire import kept
from .workload import Workload, check_read_back

MEMBERS, COPIES = 5, 3
SHARDS = 5
VALUE_BYTES = 32 << 10
VALUES = 640
SHARE_MIN, SHARE_MAX = 0.6, 0.65    # of what full copies on all members take; 3 of 5 are 0.6
SPACE_S = 90.0


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(MEMBERS, "--reclaim-seconds", "1", "--reclaim-bytes", "1")


async def group_of(cluster: Cluster, shards: int = 1, copies: int = COPIES) -> str:
    return await cluster.create_group(shards=shards, factor=MEMBERS, replication={"payloadCopies": copies})


async def payload_bytes(cluster: Cluster) -> float:
    """Return what payloads take in the tables of all nodes."""
    series = 'tidemark_store_bytes{what="payloads",where="tables"}'
    return sum([await cluster.metric(name, series) for name in cluster.nodes])


async def swept(cluster: Cluster, group: str, index: int = 0) -> None:
    """Wait until every member has dropped all it may of what the leader holds now."""
    members = await cluster.members(group, index)
    head = offset_of((await cluster.replica(members[0], group, index))["head"])

    async def done() -> bool:
        found = [await cluster.replica(name, group, index) for name in members]
        return all(replica.get("swept", -1) >= head for replica in found)

    await until(done, f"every member of shard {index} of {group} has dropped what it need not keep up to {head}")


async def check_copies(cluster: Cluster, group: str, copies: int, index: int = 0) -> None:
    """Assert that each record that was there when every member was swept is kept by so many members."""
    await swept(cluster, group, index)
    shard = await cluster.shard(group, index)
    ensemble = [member["node"] for member in shard["ensemble"]]
    through = min([(await cluster.replica(name, group, index))["swept"] for name in ensemble])

    views = [await kept(cluster.address(name), group, index, ensemble, through) for name in ensemble]
    counts = Counter(offset for view in views for offset, there in view.items() if there)
    assert counts and set(counts.values()) == {copies}, Counter(counts.values())


async def lacking(cluster: Cluster, group: str) -> set[str]:
    """Return the members that were asked for a payload by delivery and do not keep it."""
    found = set()
    for name in await cluster.members(group):
        if await cluster.metric(name, "tidemark_delivery_not_held_total"):
            found.add(name)
    return found


# --- what it is for ---------------------------------------------------------------------------------------------


async def test_disks_hold_three_of_five_copies_and_readers_see_everything_once(cluster: Cluster, client: Client):
    group = await group_of(cluster, SHARDS)
    before = await payload_bytes(cluster)
    written: dict[tuple[int, int], bytes] = {}
    async with client.appender(group) as appender:
        futures = []
        for number in range(VALUES):
            value = os.urandom(VALUE_BYTES)
            await appender.wait_for_room(VALUE_BYTES + 1024)
            futures.append((value, appender.append_nowait(value, key=b"k%d" % number)))
        for value, future in futures:
            place = await future
            written[place.shard, place.offset] = value
    assert len(written) == VALUES
    for index in range(SHARDS):
        await swept(cluster, group, index)

    full = MEMBERS * VALUES * VALUE_BYTES
    taken = 0.0

    async def given_back() -> bool:
        nonlocal taken
        taken = await payload_bytes(cluster) - before
        return SHARE_MIN * full <= taken <= SHARE_MAX * full

    try:
        await until(given_back, "", SPACE_S)
    except AssertionError as error:
        raise AssertionError(f"payloads take {taken / full:.3f} of {MEMBERS} full copies") from error

    reader = client.read(group)
    read = [((record.shard, record.offset), record.value) async for record in reader]
    assert len(read) == VALUES and dict(read) == written
    assert reader.stats.all_send_all == 0 and await lacking(cluster, group) == set(), "each came from one that keeps it"
    assert reader.stats.duplicates == 0


async def test_reading_from_the_leader_alone_is_refused_in_words(cluster: Cluster, client: Client):
    group = await group_of(cluster)
    async with Workload(client, group, value_bytes=4_000) as load:
        await load.more(200)
    await swept(cluster, group)
    with pytest.raises(tidemark.errors.TidemarkError) as caught:
        _ = [record async for record in client.read(group, mode="leader")]
    assert caught.value.reason == "NOT_HELD" and "leader" in caught.value.advice
    await check_read_back(client, load)


async def test_commands_show_how_many_keep_a_payload_and_who(cluster: Cluster, client: Client):
    group = await group_of(cluster)
    async with Workload(client, group) as load:
        await load.more()
    (info,) = (await cluster.cli("shards", group, "--json")).document["groups"]
    assert info["shards"][0]["payload_copies"] == COPIES
    assert f"{COPIES}/{MEMBERS}" in (await cluster.cli("shards", group)).out
    explained = (await cluster.cli("explain", "read", group, "--json")).document
    for row in explained["ranges"]:
        assert row["keepers"] == row["order"][:COPIES] and row["sender"] == row["keepers"][0]


# --- faults -----------------------------------------------------------------------------------------------------


async def test_leader_is_killed(cluster: Cluster, client: Client):
    group = await group_of(cluster)
    async with Workload(client, group, value_bytes=2_000) as load:
        await load.more(200)
        await swept(cluster, group)
        killed = await cluster.leader(group)
        cluster.kill(killed)
        await load.more(200)
        await check_read_back_so_far(client, group, load)
        await cluster.start(killed)
        await load.more(200)
    await cluster.replicated(group)
    await check_read_back(client, load)


async def test_disk_is_lost_and_a_node_is_swapped_for_good(cluster: Cluster, client: Client):
    """A wiped disk comes back into its slot; contract frees a node, which then takes the place of a dead one."""
    group = await group_of(cluster)
    async with Workload(client, group, value_bytes=2_000) as load:
        await load.more(200)
        await swept(cluster, group)
        _, wiped, *_ = await cluster.members(group)
        cluster.kill(wiped)
        await load.more()
        cluster.runtime.wipe(wiped)
        await cluster.start(wiped)
        await cluster.replicated(group)
        await check_read_back_so_far(client, group, load)
        await check_copies(cluster, group, COPIES)

        leaver = (await cluster.members(group))[2]
        shrunk = (await cluster.cli("contract", group, "0", "--from", leaver, "--json")).document
        assert leaver not in shrunk["ensemble"] and len(shrunk["ensemble"]) == MEMBERS - 1
        await load.more()
        await check_read_back_so_far(client, group, load)
        await check_copies(cluster, group, COPIES)

        dead = (await cluster.members(group))[1]
        cluster.kill(dead)
        await load.more()
        swapped = (await cluster.cli("swap", group, "0", "--from", dead, "--to", leaver, "--json")).document
        assert dead not in swapped["ensemble"] and leaver in swapped["ensemble"]
        await load.more()
        await check_read_back_so_far(client, group, load)
        await check_copies(cluster, group, COPIES)
    await check_read_back(client, load)


# --- another number of copies -----------------------------------------------------------------------------------


async def test_payload_copies_are_raised_and_lowered_by_manifest(cluster: Cluster, client: Client):
    group = await group_of(cluster, 2)
    async with Workload(client, group, value_bytes=2_000) as load:
        await load.more(200)
        for index in range(2):
            await check_copies(cluster, group, COPIES, index)
        for copies in (COPIES + 1, COPIES):
            await declare(cluster, group, copies)
            await until(lambda copies=copies: in_force(cluster, group, copies), f"{copies} payload copies are in force")
            await load.more_on_every_shard()
            await check_read_back_so_far(client, group, load)
            for index in range(2):
                await check_copies(cluster, group, copies, index)
    await check_read_back(client, load)


async def test_a_member_more_is_refused_while_too_few_would_keep_old_payloads(cluster: Cluster, client: Client):
    group = await cluster.create_group(replication={"payloadCopies": 2})
    (spare, *_) = await cluster.spares(group)
    refused = await cluster.cli("expand", group, "0", "--to", spare, "--json")
    assert refused.code == 1 and refused.document["error"] == "BELOW_MINIMUM"
    assert "raise payloadCopies to 3" in refused.document["message"]


async def declare(cluster: Cluster, group: str, copies: int) -> None:
    (found,) = [item for item in await cluster.objects("LogGroup") if item["metadata"]["name"] == group]
    manifest: dict[str, Any] = {key: found[key] for key in ("apiVersion", "kind", "spec")}
    manifest["metadata"] = {"name": group}
    manifest["spec"]["replication"]["payloadCopies"] = copies
    await cluster.apply(manifest)


async def in_force(cluster: Cluster, group: str, copies: int) -> bool:
    (found,) = [item for item in await cluster.objects("LogGroup") if item["metadata"]["name"] == group]
    seen = found["status"]["payloadCopiesInForce"]
    ready, reason, message = condition(found, "Ready")
    assert ready == "True" or reason in ("PayloadCopiesPending", "ShardsNotOnline"), (reason, message)
    return ready == "True" and seen == {"min": copies, "max": copies}


async def check_read_back_so_far(client: Client, group: str, load: Workload) -> None:
    """Assert that readers see once whatever was acknowledged when they began, while appends go on."""
    promised = {(place.shard, place.offset): value for _, value, place in list(load.acked)}
    records = [record async for record in client.read(group, timeout_s=30)]
    read = {(record.shard, record.offset): record.value for record in records}
    assert len(read) == len(records), "a record was delivered twice"
    assert promised.items() <= read.items()
