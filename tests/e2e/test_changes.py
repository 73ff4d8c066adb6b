"""Swap, expand, contract and transfer under load, by command and by manifest; those that are refused change nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
import yaml
from tidemark import Client
from tidemark_core.base.refusals import Reason, Refused
from tidemark_wire.status import refusal_from_rpc_error

from tests.ran import Ran
from tests.waiting import until

from .cluster import CLI_S, Cluster, condition
from .workload import Workload, check_every_copy


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(5)


def done(ran: Ran) -> dict[str, Any]:
    """Return the document of a command that succeeded."""
    assert ran.code == 0, ran
    return dict(ran.document)


def refused(ran: Ran, reason: str, *said: str, code: int = 1) -> None:
    """Assert that a command failed with this reason, in words that name these facts."""
    assert ran.code == code, ran
    document = ran.document
    assert document["error"] == reason, document
    assert document["advice"], "it says what to do next"
    for fact in said:
        assert fact in document["message"], (fact, document)
    assert "Traceback" not in ran.err and "error:" in ran.err


async def what_is(cluster: Cluster) -> dict[str, Any]:
    """Return every object with what a refused request must not change: specs, epochs, ensembles, leaders."""
    found: dict[str, Any] = {}
    for kind in ("TidemarkCluster", "LogGroup", "Reconfiguration"):
        for item in await cluster.objects(kind):
            found[f"{kind}/{item['metadata']['name']}"] = (item["spec"], item["metadata"]["generation"])
    for item in await cluster.objects("Shard"):
        status = item["status"]
        found[f"Shard/{item['metadata']['name']}"] = (
            status["epoch"], status["leader"], status["state"], [m["node"] for m in status["ensemble"]])
    return found


async def asked(cluster: Cluster, *arguments: str) -> dict[str, Any]:
    """Run a command until its transfer ends well: another member leads where the target answers too late (O12)."""
    async def ran() -> Ran | None:
        found = await cluster.cli(*arguments, "--json")
        return None if found.code and "leads instead" in found.out + found.err else found

    return done(await until(ran, " ".join(arguments), 3 * CLI_S))


# --- what is asked for happens ---------------------------------------------------------------------------------


async def test_every_change_of_one_shard_by_command(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader, follower, third = await cluster.members(group)
        spare, other, *_ = await cluster.spares(group)

        swapped = done(await cluster.cli("swap", group, "0", "--from", follower, "--to", spare, "--json"))
        assert sorted(swapped["ensemble"]) == sorted([leader, spare, third]) and swapped["leader"] == leader

        handed = await asked(cluster, "transfer", group, "0", "--to", spare)
        assert handed["leader"] == spare

        led = await asked(cluster, "swap", group, "0", "--from", spare, "--to", follower, "--transfer")
        assert spare not in led["ensemble"] and led["leader"] in (leader, third)

        grown = done(await cluster.cli("expand", group, "0", "--to", other, "--json"))
        assert sorted(grown["ensemble"]) == sorted([leader, follower, third, other])

        shrunk = done(await cluster.cli("contract", group, "0", "--from", other, "--json"))
        assert sorted(shrunk["ensemble"]) == sorted([leader, follower, third])

        leaver = (await cluster.members(group))[2]
        forced = done(await cluster.cli("contract", group, "0", "--from", leaver, "--force", "--json"))
        assert len(forced["ensemble"]) == 2 and leaver not in forced["ensemble"]
        done(await cluster.cli("expand", group, "0", "--to", leaver, "--json"))
        await load.more()
    await check_every_copy(cluster, client, load)


async def test_whole_node_is_swapped_by_command_and_by_manifest(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=3)
    spare = await cluster.runtime.add_node()
    await cluster.ready()
    async with Workload(client, group) as load:
        await load.more()
        source = await cluster.leader(group)
        swapped = done(await cluster.cli("swap", "--from", source, "--to", spare, "--json"))
        assert swapped["moves"] == swapped["completed"] > 0
        assert await shards_of(cluster, group, source) == []

        name = await cluster.reconfigure(
            "NodeSwap", {"from": spare, "to": {"spread": {}}, "removeSource": "Keep"})
        item = await cluster.finished(name)
        assert condition(item, "Succeeded")[0] == "True", item["status"]
        assert await shards_of(cluster, group, spare) == []
        await load.more_on_every_shard()
    await check_every_copy(cluster, client, load)


async def shards_of(cluster: Cluster, group: str, node: str) -> list[int]:
    return [shard for shard in range(3) if node in await cluster.members(group, shard)]


async def test_copies_are_raised_and_lowered_by_manifest(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=2)
    async with Workload(client, group) as load:
        await load.more()
        for kind, factor in (("Expand", 4), ("Contract", 3)):
            await cluster.apply(loggroup(group, factor, shards=2))
            item = await cluster.finished(
                await cluster.reconfigure(kind, {"logGroup": group, "factor": factor}))
            assert condition(item, "Succeeded")[0] == "True", item["status"]
            for shard in (0, 1):
                assert len(await cluster.members(group, shard)) == factor
            await load.more_on_every_shard()
    await check_every_copy(cluster, client, load)


def loggroup(name: str, factor: int, shards: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": "e2e"}, "shards": shards, "maxRecordBytes": 1 << 20,
            "replication": {"factor": factor, "defaultAck": "Quorum", "spread": "Node"},
        },
    }


async def test_node_is_relieved_of_its_leaderships_by_command_and_by_manifest(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=2)
    async with Workload(client, group) as load:
        await load.more()
        leader = await cluster.leader(group)
        relieved = await asked(cluster, "transfer", "--from", leader)
        assert relieved["moves"] == relieved["completed"]
        assert leader not in [await cluster.leader(group, shard) for shard in (0, 1)]

        to = (await cluster.members(group))[1]
        item = await cluster.finished(await cluster.reconfigure(
            "LeaderTransfer", {"to": to}, scope={"logGroups": [group], "shardIDs": [0]}))
        assert condition(item, "Succeeded")[0] == "True", item["status"]
        assert await cluster.leader(group) == to
        await load.more_on_every_shard()
    await check_every_copy(cluster, client, load)


# --- what is refused changes nothing -----------------------------------------------------------------------------


async def test_refused_changes_name_the_fact_and_change_nothing(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    leader, follower, third = await cluster.members(group)
    spare, other, *_ = await cluster.spares(group)
    cluster.kill(other)
    before = await what_is(cluster)

    by_command = await asyncio.gather(
        cluster.cli("swap", group, "0", "--from", leader, "--to", spare, "--json"),
        cluster.cli("swap", group, "0", "--from", follower, "--to", third, "--json"),
        cluster.cli("contract", group, "0", "--from", follower, "--json"),
        cluster.cli("swap", "nowhere", "0", "--from", follower, "--to", spare, "--json"),
    )
    refused(by_command[0], "LEADER_CANNOT_LEAVE", leader)
    assert "--transfer" in by_command[0].document["advice"]
    refused(by_command[1], "ALREADY_MEMBER", third)
    refused(by_command[2], "BELOW_MINIMUM", "3 copies")
    assert "--force" in by_command[2].document["advice"]
    refused(by_command[3], "UNKNOWN_GROUP", "nowhere")

    async def asked(operation: str, of: str = group, index: int = 0, **nodes: str) -> Refused:
        return await refusal(cluster.change(operation, of, index, **nodes))

    for answer, reason, fact in [
        (await asked("SWAP", from_node=spare, to_node=follower), Reason.NOT_MEMBER, spare),
        (await asked("SWAP", from_node=follower, to_node=other), Reason.NODE_UNAVAILABLE, other),
        (await asked("SWAP", from_node=follower, to_node="e2e-99"), Reason.NODE_UNAVAILABLE, "e2e-99"),
        (await asked("SWAP", to_node=spare), Reason.INVALID_SPEC, "from_node"),
        (await asked("EXPAND", to_node=leader), Reason.ALREADY_MEMBER, leader),
        (await asked("CONTRACT", from_node=spare), Reason.NOT_MEMBER, spare),
        (await asked("TRANSFER", to_node=spare), Reason.NOT_MEMBER, spare),
        (await asked("TRANSFER"), Reason.INVALID_SPEC, "to_node"),
        (await asked("TRANSFER", "nowhere", to_node=spare), Reason.UNKNOWN_GROUP, "nowhere"),
        (await asked("SWAP", index=7, from_node=follower, to_node=spare), Reason.UNKNOWN_SHARD, "7"),
        (await asked("MOVE", to_node=spare), Reason.INVALID_SPEC, "operation"),
    ]:
        assert answer.reason == reason and fact in answer.message, answer
    assert await what_is(cluster) == before


async def refusal(work: Awaitable[Any]) -> Refused:
    """Return the typed no that a call to the operator ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work
    found = refusal_from_rpc_error(caught.value)
    assert found is not None, caught.value
    return found.refused


@pytest.mark.parametrize(
    "kind, block, body, facts",
    [
        ("NodeSwap", "nodeSwap", {"from": "e2e-77", "to": {"node": "e2e-1"}}, ["e2e-77"]),
        ("NodeSwap", "nodeSwap", {"from": "e2e-1", "to": {"node": "e2e-77"}}, ["e2e-77"]),
        ("Expand", "expand", {"logGroup": "nowhere", "factor": 5}, ["nowhere"]),
        ("Contract", "contract", {"logGroup": "GROUP", "factor": 2}, ["below 3", "belowThree"]),
        ("LeaderTransfer", "leaderTransfer", {"to": "e2e-77"}, ["e2e-77"]),
    ],
    ids=["swap from nobody", "swap to nobody", "expand nothing", "contract below three", "transfer to nobody"],
)
async def test_reconfiguration_that_cannot_be_planned_changes_nothing(
    cluster: Cluster, client: Client, kind: str, block: str, body: dict[str, Any], facts: list[str]
):
    group = await cluster.create_group()
    body = {key: group if value == "GROUP" else value for key, value in body.items()}
    before = {name: value for name, value in (await what_is(cluster)).items() if not name.startswith("Reconf")}
    manifest = {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "Reconfiguration",
        "metadata": {"name": f"refused-{group}"},
        "spec": {"clusterRef": {"name": "e2e"}, "type": kind, block: body},
    }
    ran = await cluster.cli("apply", "-f", "-", "--json", stdin=yaml.safe_dump(manifest).encode())
    if ran.code == 0:  # well formed: refused by its plan, in its status
        item = await cluster.finished(manifest["metadata"]["name"])
        status, reason, message = condition(item, "Succeeded")
        assert (status, reason) == ("False", "Rejected"), item["status"]
        assert condition(item, "Validated")[0] == "False"
    else:
        refused(ran, "INVALID_SPEC")
        message = ran.document["message"]
    for fact in facts:
        assert fact in message, (fact, message)
    after = {name: value for name, value in (await what_is(cluster)).items() if not name.startswith("Reconf")}
    assert after == before


async def test_malformed_manifests_name_the_field_and_change_nothing(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    before = await what_is(cluster)
    good = loggroup("another", 3)

    def but(**changes: Any) -> bytes:
        """Return the good manifest with fields set by path, `a__b` standing for a.b; None removes."""
        document = json.loads(json.dumps(good))
        for path, value in changes.items():
            *parents, last = path.split("__")
            at = document
            for parent in parents:
                at = at[parent]
            if value is None:
                at.pop(last, None)
            else:
                at[last] = value
        return yaml.safe_dump(document).encode()

    many = [
        (b"{", ["manifest"]),
        (b"- 1\n- 2\n", ["manifest"]),
        (but(kind="LogGruop"), ["LogGruop"]),
        (but(kind=None), ["kind"]),
        (but(apiVersion="tidemark.dev/v9"), ["apiVersion"]),
        (but(metadata__name="No Spaces"), ["metadata.name"]),
        (but(spec__shards=0), ["spec.shards"]),
        (but(spec__shards="four"), ["spec.shards"]),
        (but(spec__shards=None), ["spec.shards"]),
        (but(spec__replication__factor=0), ["spec.replication"]),
        (but(spec__replication__defaultAck="Maybe"), ["spec.replication.defaultAck"]),
        (but(spec__clusterRef__name="elsewhere"), ["spec.clusterRef.name", "elsewhere"]),
        (but(spec__shardz=4), ["spec.shardz"]),
        (but(spec__maxRecordBytes=-1), ["spec.maxRecordBytes"]),
        # one bad document spoils them all: the good one in front of it is not applied either
        (but() + b"\n---\n" + but(metadata__name="third", spec__shards=-3), ["spec.shards"]),
        # what may not change once it is there
        (yaml.safe_dump({**loggroup(group, 3, shards=9)}).encode(), ["spec.shards"]),
    ]
    for text, facts in many:
        answer = await refusal(cluster.runtime.apply(text.decode()))
        assert answer.reason == Reason.INVALID_SPEC, (text, answer)
        for fact in facts:
            assert fact in answer.message, (fact, answer)
    bad, missing = await asyncio.gather(
        cluster.cli("apply", "-f", "-", "--json", stdin=but(spec__shards="four")),
        cluster.cli("apply", "-f", "/nowhere/at/all.yaml", "--json"),
    )
    refused(bad, "INVALID_SPEC", "spec.shards")
    assert missing.code != 0 and "/nowhere/at/all.yaml" in missing.document["message"]
    assert await what_is(cluster) == before
