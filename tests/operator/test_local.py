"""The local runtime with real processes: etcd, an operator, five nodes; what kills, swaps and outages do.

One cluster serves the whole file; each test leaves it healthy, which its fixture checks before and after.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import tidemark
from tidemark_core.base.refusals import Reason
from tidemark_operator import local, local_processes
from tidemark_operator.local import LocalRuntimeError, Runtime
from tidemark_operator.local_state import load_state, save_state
from tidemark_operator.process import ProcessId, alive
from tidemark_operator.resources import KINDS, load_resource
from tidemark_operator.resources.conditions import required_types
from tidemark_wire.channel import open_channel
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.v1 import admin_pb2, admin_pb2_grpc, keyspaces_pb2
from tidemark_wire.v1.keyspaces_pb2_grpc import KeyspacesStub

from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.servers
RECORDS = 2_000

ORDERS = """
apiVersion: tidemark.dev/v1alpha1
kind: LogGroup
metadata: {name: orders}
spec: {clusterRef: {name: dev}, shards: 4}
"""
CARTS = ORDERS.replace("LogGroup", "Keyspace").replace("orders", "carts").replace("shards: 4", "partitions: 8")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    directory = tmp_path_factory.mktemp("dev")
    runtime = asyncio.run(local.up(directory, ORDERS, nodes=5))
    asyncio.run(append(runtime, RECORDS))
    yield runtime
    asyncio.run(local.down(directory, wipe=True))
    assert not any(view.state != "Stopped" for view in runtime.status())


@pytest.fixture
async def healthy(cluster: Runtime) -> AsyncIterator[Runtime]:
    yield cluster
    for view in cluster.status():
        if view.state == "Paused":
            cluster.resume(view.name)
        elif view.state == "Stopped":
            await cluster.start(view.name)
    await whole(cluster)


# --- helpers ------------------------------------------------------------------------------------------------


async def append(runtime: Runtime, count: int) -> None:
    async with (
        await tidemark.connect(runtime.bootstrap()) as client,
        client.appender("orders") as appender,
    ):
        for number in range(count):
            appender.append_nowait(b"%d" % number + b"." * 200, key=b"%d" % number)
        await appender.flush()


async def count_records(runtime: Runtime) -> int:
    async with await tidemark.connect(runtime.bootstrap()) as client:
        return sum([1 async for _record in client.read("orders")])


def condition(item: dict[str, Any], type_: str) -> dict[str, Any]:
    return next(found for found in item["status"]["conditions"] if found["type"] == type_)


async def whole(runtime: Runtime, timeout_s: float = 20) -> None:
    """Wait until every shard is led and every copy is in sync."""
    await runtime.wait_for(
        "LogGroup",
        lambda groups: bool(groups) and all(
            condition(group, type_)["status"] == "True" for group in groups
            for type_ in ("Available", "FullyReplicated")),
        "the group is whole", timeout_s)
    await runtime.wait_for(
        "Shard", lambda shards: all(shard["status"]["state"] == "Online" for shard in shards), "online", timeout_s)


async def shard(runtime: Runtime, index: int = 0) -> dict[str, Any]:
    (found,) = await runtime.objects("Shard", f"orders-{index:04}")
    return found["status"]


def members(status: dict[str, Any]) -> list[str]:
    return [member["node"] for member in status["ensemble"]]


async def led_by_others(runtime: Runtime, node: str, timeout_s: float = 10) -> None:
    await runtime.wait_for(
        "Shard",
        lambda shards: all(
            item["status"]["leader"] not in ("", node) and item["status"]["state"] == "Online" for item in shards),
        f"every shard has a leader other than {node}", timeout_s)


async def change(runtime: Runtime, operation: str, **fields: Any) -> list[admin_pb2.ChangeProgress]:
    async with open_channel(runtime.admin_address) as channel:
        request = admin_pb2.ChangeRequest(operation=operation, **{"group": "orders", **fields})
        return [item async for item in admin_pb2_grpc.AdminStub(channel).Change(request, timeout=30)]


async def refused(runtime: Runtime, operation: str, **fields: Any) -> Reason:
    before = await runtime.objects("Shard")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await change(runtime, operation, **fields)
    refusal = refusal_from_rpc_error(caught.value)
    assert refusal is not None, caught.value
    assert refusal.refused.message
    after = await runtime.objects("Shard")
    assert [item["status"]["epoch"] for item in before] == [item["status"]["epoch"] for item in after]
    return refusal.refused.reason


def reconfiguration(name: str, **spec: Any) -> str:
    return json.dumps({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "Reconfiguration", "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "dev"}, **spec},
    })


async def finished(runtime: Runtime, name: str, timeout_s: float = 30) -> dict[str, Any]:
    def ended(objects: list[dict[str, Any]]) -> bool:
        return any(
            item["metadata"]["name"] == name and item["status"].get("stage") == "Finished" for item in objects)

    await runtime.wait_for("Reconfiguration", ended, f"{name} finishes", timeout_s)
    (found,) = await runtime.objects("Reconfiguration", name)
    return found


# --- up, down, attach ---------------------------------------------------------------------------------------


async def test_a_second_up_attaches(healthy: Runtime) -> None:
    before = {view.name: view.pid for view in healthy.status()}
    again = await local.up(healthy.directory)
    assert {view.name: view.pid for view in again.status()} == before
    assert all(view.state == "Running" for view in again.status())
    assert all(view.address.startswith("127.0.0.1:") for view in again.status())
    assert healthy.etcd_origin


async def test_another_cluster_in_the_same_directory_is_refused(healthy: Runtime) -> None:
    with pytest.raises(LocalRuntimeError, match="the cluster is 'dev'") as caught:
        await local.up(healthy.directory, ORDERS.replace("name: dev", "name: other"))
    assert caught.value.advice


async def test_leaders_are_spread_and_copies_distinct(healthy: Runtime) -> None:
    shards = [item["status"] for item in await healthy.objects("Shard")]
    assert len(shards) == 4
    assert all(len(set(members(status))) == 3 for status in shards)
    (group,) = await healthy.objects("LogGroup", "orders")
    assert group["status"]["onlineShards"] == "4/4" and condition(group, "Ready")["status"] == "True"


# --- failures -----------------------------------------------------------------------------------------------


async def test_kill_of_a_leader_elects_another_within_a_second(healthy: Runtime) -> None:
    took = []
    for _round in range(3):
        victim = (await shard(healthy))["leader"]
        started = time.monotonic()
        healthy.kill(victim)
        await led_by_others(healthy, victim)
        took.append(time.monotonic() - started)
        await healthy.start(victim)
        await whole(healthy)
    print("seconds from SIGKILL to a stored leader:", [round(one, 3) for one in took])
    assert sorted(took)[1] < 1.0
    assert await count_records(healthy) == RECORDS


async def test_a_silent_leader_is_replaced_and_comes_back(healthy: Runtime) -> None:
    victim = (await shard(healthy))["leader"]
    started = time.monotonic()
    healthy.pause(victim)
    await led_by_others(healthy, victim)
    print("seconds from SIGSTOP to a stored leader:", round(time.monotonic() - started, 3))
    assert {view.name: view.state for view in healthy.status()}[victim] == "Paused"
    healthy.resume(victim)
    await whole(healthy)


async def test_a_node_is_found_on_another_port(healthy: Runtime) -> None:
    old = healthy.node_addresses()["dev-1"]
    healthy.kill("dev-1")
    state = load_state(healthy.directory)
    assert state is not None
    state.nodes["dev-1"].address = ""
    save_state(healthy.directory, state)
    await healthy.start("dev-1")
    assert healthy.node_addresses()["dev-1"] != old
    await whole(healthy)


async def test_a_graceful_stop_hands_leaderships_over_first(healthy: Runtime) -> None:
    leaving = (await shard(healthy))["leader"]
    await healthy.stop(leaving)
    for item in await healthy.objects("Shard"):  # nobody waited for a failure to be detected
        assert item["status"]["leader"] not in ("", leaving)


async def test_a_wiped_node_is_swapped_back_into_its_slots(healthy: Runtime) -> None:
    before = await shard(healthy)
    victim = members(before)[1]
    (cluster,) = await healthy.objects("TidemarkCluster")
    old = {node["name"]: node["incarnation"] for node in cluster["status"]["nodes"]}[victim]
    healthy.kill(victim)
    healthy.wipe(victim)
    await healthy.start(victim)
    await healthy.wait_for(
        "TidemarkCluster",
        lambda clusters: {node["name"]: node["incarnation"] for node in clusters[0]["status"]["nodes"]}[victim] != old,
        "the operator has seen the new disk")
    await whole(healthy)
    assert members(await shard(healthy)) == members(before)
    await healthy.wait_for(
        "Shard", lambda shards: not any(item["status"]["removedNodes"] for item in shards), "old disks are forgotten")
    (cluster,) = await healthy.objects("TidemarkCluster")
    assert {node["name"]: node["incarnation"] for node in cluster["status"]["nodes"]}[victim] != old
    assert await count_records(healthy) == RECORDS


async def test_without_etcd_shards_go_on_and_elections_wait_and_say_so(healthy: Runtime) -> None:
    healthy.kill("etcd")

    async def says_so() -> bool:
        (cluster,) = await healthy.objects("TidemarkCluster")
        return condition(cluster, "MetadataStoreReachable")["status"] == "False"

    await until(says_so, "the operator says that etcd is away")
    assert await count_records(healthy) == RECORDS
    assert await refused(healthy, "TRANSFER", shard=0, to_node="dev-1") is Reason.METADATA_UNAVAILABLE
    async with open_channel(healthy.admin_address) as channel:
        said = await admin_pb2_grpc.AdminStub(channel).Describe(admin_pb2.OperatorDescribeRequest())
    assert not said.metadata_reachable

    victim = (await shard(healthy))["leader"]
    healthy.kill(victim)
    available = await healthy.wait_for(
        "TidemarkCluster", lambda objects: "wait for etcd" in condition(objects[0], "Available")["message"],
        "waiting elections are shown", 10)
    assert condition(available[0], "Available")["reason"] == "ShardsLeaderless"
    await healthy.start("etcd")
    await led_by_others(healthy, victim)


# --- operators ----------------------------------------------------------------------------------------------


async def test_a_restarted_operator_elects_for_a_leader_that_died_meanwhile(healthy: Runtime) -> None:
    victim = (await shard(healthy))["leader"]
    healthy.kill("operator")
    healthy.kill(victim)
    await healthy.start("operator")
    await led_by_others(healthy, victim)


async def test_an_idle_restart_of_the_operator_disturbs_no_leader(healthy: Runtime) -> None:
    before = [item["status"]["epoch"] for item in await healthy.objects("Shard")]
    healthy.kill("operator")
    await healthy.start("operator")
    await whole(healthy)
    assert [item["status"]["epoch"] for item in await healthy.objects("Shard")] == before


async def test_a_second_operator_stands_by_and_takes_over(healthy: Runtime, tmp_path: Path) -> None:
    ready = tmp_path / "operator"
    command = list(healthy.state.operator.command)
    command[command.index("--ready-file") + 1] = str(ready)
    with (tmp_path / "log").open("wb") as log:
        standby = subprocess.Popen(command, stderr=log)
    try:
        await until(ready.exists, "the second operator is ready")
        address = json.loads(ready.read_text())["address"]
        async with open_channel(address) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)
            assert not (await stub.Describe(admin_pb2.OperatorDescribeRequest())).active
            healthy.kill("operator")

            async def active() -> bool:
                return (await stub.Describe(admin_pb2.OperatorDescribeRequest())).active

            await until(active, "the second operator is active")
            request = admin_pb2.ChangeRequest(operation="TRANSFER", group="orders", shard=0)
            answer = await stub.Get(admin_pb2.GetRequest(kind="Shard", name="orders-0000"))
            status = json.loads(answer.objects[0])["status"]
            request.to_node = next(name for name in members(status) if name != status["leader"])
            last = [item async for item in stub.Change(request, timeout=10)][-1]
            assert last.leader == request.to_node
    finally:
        standby.terminate()
        standby.wait(10)


# --- changes of one shard -----------------------------------------------------------------------------------


async def test_swap_of_a_follower_and_of_the_leader(healthy: Runtime) -> None:
    before = await shard(healthy)
    follower = next(name for name in members(before) if name != before["leader"])
    spare = next(name for name in healthy.state.nodes if name not in members(before))
    steps = await change(healthy, "SWAP", shard=0, from_node=follower, to_node=spare)
    assert [step.stage for step in steps][-1] == "DONE"
    assert spare in steps[-1].ensemble and follower not in steps[-1].ensemble
    assert max(step.total_bytes for step in steps) > 0
    assert await refused(healthy, "SWAP", shard=0, from_node=before["leader"]) is Reason.LEADER_CANNOT_LEAVE
    steps = await change(healthy, "SWAP", shard=0, from_node=before["leader"], transfer=True)
    assert steps[0].stage == "TRANSFER" and before["leader"] not in steps[-1].ensemble
    assert await count_records(healthy) == RECORDS


async def test_expand_and_contract(healthy: Runtime) -> None:
    assert len((await change(healthy, "EXPAND", shard=1))[-1].ensemble) == 4
    status = await shard(healthy, 1)
    victim = next(name for name in members(status) if name != status["leader"])
    assert len((await change(healthy, "CONTRACT", shard=1, from_node=victim))[-1].ensemble) == 3
    status = await shard(healthy, 1)
    victim = next(name for name in members(status) if name != status["leader"])
    assert await refused(healthy, "CONTRACT", shard=1, from_node=victim) is Reason.BELOW_MINIMUM
    assert len((await change(healthy, "CONTRACT", shard=1, from_node=victim, force=True))[-1].ensemble) == 2
    assert len((await change(healthy, "EXPAND", shard=1))[-1].ensemble) == 3


async def test_bad_changes_are_refused_by_name_and_change_nothing(healthy: Runtime) -> None:
    status = await shard(healthy)
    leader = status["leader"]
    follower, other = (name for name in members(status) if name != leader)
    assert await refused(healthy, "SWAP", shard=0, from_node=follower, to_node=other) is Reason.ALREADY_MEMBER
    assert await refused(healthy, "SWAP", shard=0, from_node="dev-99") is Reason.NODE_UNAVAILABLE
    assert await refused(healthy, "SWAP", shard=0, from_node=follower, to_node="x") is Reason.NODE_UNAVAILABLE
    assert await refused(healthy, "SWAP", shard=0) is Reason.INVALID_SPEC
    assert await refused(healthy, "TRANSFER", shard=0) is Reason.INVALID_SPEC
    assert await refused(healthy, "DANCE", shard=0) is Reason.INVALID_SPEC
    assert await refused(healthy, "SWAP", shard=99, from_node=follower) is Reason.UNKNOWN_SHARD
    assert await refused(healthy, "SWAP", group="nope", from_node=follower) is Reason.UNKNOWN_GROUP


# --- reconfigurations ---------------------------------------------------------------------------------------


async def test_a_node_is_drained_and_filled_again(healthy: Runtime) -> None:
    drain = reconfiguration(
        "drain", type="NodeSwap", nodeSwap={"from": "dev-2", "to": {"spread": {}}, "removeSource": "Keep"})
    assert await healthy.apply(drain) == ["Reconfiguration/drain created"]
    assert await healthy.apply(drain) == ["Reconfiguration/drain unchanged"]
    done = await finished(healthy, "drain")
    assert condition(done, "Succeeded")["reason"] == "Completed", done["status"]
    assert done["status"]["progress"]["percent"] == 100
    assert all("dev-2" not in members(item["status"]) for item in await healthy.objects("Shard"))
    await healthy.apply(reconfiguration("refill", type="Rebalance", rebalance={"nodes": ["dev-2"]}))
    assert condition(await finished(healthy, "refill"), "Succeeded")["status"] == "True"
    assert any("dev-2" in members(item["status"]) for item in await healthy.objects("Shard"))


async def test_an_impossible_reconfiguration_is_rejected_with_its_reason(healthy: Runtime) -> None:
    await healthy.apply(reconfiguration(
        "nowhere", type="NodeSwap", nodeSwap={"from": "dev-77", "to": {"spread": {}}}))
    done = await finished(healthy, "nowhere")
    assert condition(done, "Validated")["reason"] == "NodeNotFound"
    assert condition(done, "Succeeded")["reason"] == "Rejected"


async def test_a_restarted_operator_resumes_a_suspended_reconfiguration(healthy: Runtime) -> None:
    spec = {"type": "NodeSwap", "nodeSwap": {"from": "dev-3", "to": {"spread": {}}, "removeSource": "Keep"}}
    await healthy.apply(reconfiguration("resumed", **spec, suspend=True))
    await healthy.wait_for(
        "Reconfiguration",
        lambda objects: any(item["status"].get("stage") == "Suspended" for item in objects), "suspended")
    (before,) = await healthy.objects("Reconfiguration", "resumed")
    healthy.kill("operator")
    await healthy.start("operator")
    await healthy.apply(reconfiguration("resumed", **spec))
    done = await finished(healthy, "resumed")
    assert condition(done, "Succeeded")["status"] == "True", done["status"]
    assert done["status"]["plan"]["hash"] == before["status"]["plan"]["hash"]


async def test_approval_and_cancel(healthy: Runtime) -> None:
    spec = {"type": "LeaderTransfer", "leaderTransfer": {"to": "dev-1"}, "approval": "Required"}
    await healthy.apply(reconfiguration("asked", **spec))
    waiting = await healthy.wait_for(
        "Reconfiguration",
        lambda objects: any(item["status"].get("stage") == "AwaitingApproval" for item in objects), "asks")
    plan = next(item for item in waiting if item["metadata"]["name"] == "asked")["status"]["plan"]
    await healthy.apply(reconfiguration("behind", type="Rebalance", rebalance={"maxMovePercent": 1}))
    assert condition(await finished(healthy, "behind"), "Succeeded")["status"] == "True"
    (aside,) = await healthy.objects("Reconfiguration", "asked")
    assert aside["status"]["stage"] == "AwaitingApproval", "it holds up nobody"
    await healthy.apply(reconfiguration("asked", **spec, approvedPlan=plan["hash"]))
    assert condition(await finished(healthy, "asked"), "Approved")["reason"] == "ApprovedByUser"

    await healthy.apply(reconfiguration("dropped", **{**spec, "leaderTransfer": {"from": "dev-1"}}))
    await healthy.apply(reconfiguration("dropped", **{**spec, "leaderTransfer": {"from": "dev-1"}}, cancel=True))
    assert condition(await finished(healthy, "dropped"), "Succeeded")["reason"] == "Canceled"


async def test_a_changed_factor_is_carried_out(healthy: Runtime) -> None:
    for factor, name in ((4, "orders-expand-2"), (3, "orders-contract-3")):
        text = ORDERS.replace("shards: 4", f"shards: 4, replication: {{factor: {factor}}}")
        assert await healthy.apply(text) == ["LogGroup/orders configured"]
        assert condition(await finished(healthy, name), "Succeeded")["reason"] == "Completed"
        assert {len(members(item["status"])) for item in await healthy.objects("Shard")} == {factor}
    assert await count_records(healthy) == RECORDS


# --- manifests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "fact"), [
    ("kind: LogGroup", "apiVersion"),
    (ORDERS.replace("shards: 4", "shards: 8"), "spec.shards"),
    (ORDERS.replace("orders", "x").replace("shards: 4", "shards: many"), "spec.shards"),
    (ORDERS.replace("orders", "x").replace("{name: dev}", "{name: prod}"), "spec.clusterRef.name"),
    (ORDERS.replace("shards: 4", "shards: 4, replication: {factor: 7}"), "factor"),
    ("{", "manifest"),
])
async def test_a_bad_manifest_is_refused_by_field_and_nothing_is_applied(healthy: Runtime, text, fact) -> None:
    before = await healthy.objects("LogGroup")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await healthy.apply(ORDERS.replace("orders", "fresh") + "---\n" + text)
    refusal = refusal_from_rpc_error(caught.value)
    assert refusal is not None and refusal.refused.reason is Reason.INVALID_SPEC
    assert fact in refusal.refused.message
    after = await healthy.objects("LogGroup")
    assert [item["metadata"] for item in before] == [item["metadata"] for item in after]


async def test_a_group_that_has_no_room_says_so(healthy: Runtime) -> None:
    text = ORDERS.replace("orders", "big").replace("shards: 4", "shards: 1, replication: {factor: 9}")
    await healthy.apply(text)
    found = await healthy.wait_for(
        "LogGroup", lambda groups: any(condition(item, "Stalled")["status"] == "True" for item in groups), "stalls")
    stalled = next(item for item in found if item["metadata"]["name"] == "big")
    assert condition(stalled, "Stalled")["reason"] == "NotEnoughNodes"
    async with open_channel(healthy.admin_address) as channel:
        await admin_pb2_grpc.AdminStub(channel).Delete(admin_pb2.DeleteRequest(kind="LogGroup", name="big"))
    assert [item["metadata"]["name"] for item in await healthy.objects("LogGroup")] == ["orders"]


async def test_a_keyspace_is_served_by_every_node_while_its_quorums_change(healthy: Runtime) -> None:
    def ready(quorums: str) -> Callable[[list[dict[str, Any]]], bool]:
        return lambda found: bool(found) and found[0]["status"]["quorums"] == quorums and (
            condition(found[0], "Ready")["status"] == "True")

    assert await healthy.apply(CARTS) == ["Keyspace/carts created"]
    await healthy.wait_for("Keyspace", ready("3/2/2"), "every range has its owners")
    keys = [b"key-%d" % number for number in range(50)]
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(open_channel(each)) for each in healthy.node_addresses().values()]
        assert len(channels) == 5, "two nodes of them own no copy of a key"
        stubs = [KeyspacesStub(channel) for channel in channels]

        async def served(stub: Any) -> bool:   # the map that the operator pushes may still be on its way
            with suppress(grpc.aio.AioRpcError):
                return bool(await stub.Get(keyspaces_pb2.GetStringsRequest(keyspace="carts", keys=keys[:1])))
            return False

        for stub in stubs:
            await until(lambda stub=stub: served(stub))  # type: ignore[misc]
        written = await stubs[0].Set(keyspaces_pb2.SetStringsRequest(
            keyspace="carts", items=[keyspaces_pb2.SetString(key=key, value=key.upper()) for key in keys]))
        assert {each.outcome for each in written.written} == {"ok"}
        more = "replication: {readQuorum: 1, writeQuorum: 3}, partitions"
        assert await healthy.apply(CARTS.replace("partitions", more)) == ["Keyspace/carts configured"]
        await healthy.wait_for("Keyspace", ready("3/1/3"), "the quorums are in force")
        for stub in stubs:
            found = await stub.Get(keyspaces_pb2.GetStringsRequest(keyspace="carts", keys=keys))
            assert [each.value for each in found.values] == [key.upper() for key in keys]
    async with open_channel(healthy.admin_address) as channel:
        await admin_pb2_grpc.AdminStub(channel).Delete(admin_pb2.DeleteRequest(kind="Keyspace", name="carts"))
    assert await healthy.objects("Keyspace") == []


@pytest.mark.parametrize(("text", "fact"), [
    (ORDERS.replace("LogGroup", "Shard"), "mirrors the metadata store"),
    (CARTS.replace("partitions: 8", "partitions: 63"), "power of two"),
    (ORDERS + "---" + CARTS.replace("dev}", "prod}"), "spec.clusterRef.name"),
])
async def test_up_refuses_before_anything_starts(tmp_path: Path, text: str, fact: str) -> None:
    with pytest.raises(LocalRuntimeError, match=fact):
        await local.up(tmp_path / "new", text)
    assert not (tmp_path / "new" / "state.json").exists()


async def test_whatever_is_shown_is_what_its_resource_allows(healthy: Runtime) -> None:
    """The same objects go to an API server, which refuses a status that its definition does not take."""
    shown = {kind: await healthy.objects(kind) for kind in KINDS}
    assert len(shown["Shard"]) == 4 and shown["Reconfiguration"], "other tests of this file made some"
    for kind, items in shown.items():
        status = KINDS[kind].model.model_fields["status"].annotation.__args__[0]
        for item in items:
            assert load_resource(item, f"{kind} as shown").name == item["metadata"]["name"]
            status.model_validate_json(json.dumps(item["status"]))
            assert {one["type"] for one in item["status"]["conditions"]} == set(required_types(kind))


async def test_unknown_objects_and_kinds_are_refused(healthy: Runtime) -> None:
    for kind, name in (("LogGroup", "nope"), ("Pod", ""), ("Shard", "orders-0099")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await healthy.objects(kind, name)
        assert refusal_from_rpc_error(caught.value) is not None


# --- what is wrong on this machine --------------------------------------------------------------------------


async def test_a_directory_without_a_cluster_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LocalRuntimeError, match="no local cluster") as caught:
        await local.attach(tmp_path)
    assert "tidemark dev up" in caught.value.advice


async def test_an_unreadable_state_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"format": 99}')
    with pytest.raises(LocalRuntimeError, match="cannot be read"):
        await local.up(tmp_path)
    assert (tmp_path / "state.json").read_text() == '{"format": 99}'


async def test_a_missing_etcd_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_processes, "find_etcd", lambda: None)
    with pytest.raises(LocalRuntimeError, match="no etcd was found") as caught:
        await local.up(tmp_path)
    assert "x86_64 Linux" in caught.value.advice


async def test_a_process_that_took_over_a_number_is_a_stranger(healthy: Runtime) -> None:
    known = healthy.state.operator.process
    assert known is not None and alive(known)
    assert not alive(ProcessId(known.pid, "another start"))


async def test_unknown_and_stopped_processes_are_named(healthy: Runtime) -> None:
    with pytest.raises(LocalRuntimeError, match="no process 'dev-99'"):
        healthy.kill("dev-99")
    healthy.kill("dev-5")
    with pytest.raises(LocalRuntimeError, match="dev-5 is not running"):
        healthy.kill("dev-5")


def test_optimised_python_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "tidemark_operator", "--etcd", "http://127.0.0.1:1", "--cluster", "dev"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode != 0 and "-O" in done.stderr
