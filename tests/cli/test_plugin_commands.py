"""The commands of `kubectl tidemark` on objects in memory: what they show, and what they write."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.client import Configuration
from plugin_objects import PLAN, FakeServer, cluster, condition, group, healthy, shard, swap
from tidemark_cli import main as entry
from tidemark_cli.kubectl import server as room
from tidemark_cli.kubectl.commands import app, command_first, run
from tidemark_operator.kube.api import KubeAway, KubeRefused, load_configuration, load_user_configuration

from tests.ran import Ran

Object = dict[str, Any]
Plugin = Callable[..., Ran]


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer(*healthy())


@pytest.fixture
def plugin(fake: FakeServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Plugin:
    """Run a command line in this process."""

    async def configuration(kubeconfig: str, context: str) -> tuple[Configuration, str]:
        return Configuration(), "data"

    monkeypatch.setattr(room, "load_user_configuration", configuration)
    monkeypatch.setattr(room, "KubeApi", lambda _configuration: fake)

    def call(*arguments: str) -> Ran:
        capfd.readouterr()
        code = run(list(arguments))
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


COMMANDS = sorted(command.name or "" for command in app.registered_commands)


# --- looking ------------------------------------------------------------------------------------------------


def test_every_command_has_the_options_of_kubectl(plugin: Plugin):
    assert len(COMMANDS) == 22
    for command in COMMANDS:
        shown = plugin(command, "--help")
        assert shown.code == 0
        for option in ("--kubeconfig", "--context", "--namespace", "-n", "--output", "-o"):
            assert option in shown.out, (command, option)


def test_status_shows_nodes_groups_and_that_nothing_blocks(plugin: Plugin):
    shown = plugin("status", "prod")
    assert shown.code == 0, shown.err
    for text in ("prod-4", "machine-4", "orders", "2/2", "Ready True", "zone-a 1/1"):
        assert text in shown.out
    assert shown.out.rstrip().endswith("nothing")
    document = plugin("status", "-o", "json").document
    assert document["findings"] == []
    assert [node["pod"] for node in document["nodes"]] == ["Ready"] * 4
    assert yaml.safe_load(plugin("status", "--output=yaml").out) == document


def test_status_says_what_blocks(plugin: Plugin, fake: FakeServer):
    fake.items.append(swap(at="AwaitingApproval"))
    shown = plugin("status")
    assert "its plan wants approval" in shown.out
    assert "-> kubectl tidemark approve swap" in shown.out
    assert plugin("status", "-o", "json").document["reconfigurations"][0]["stage"] == "AwaitingApproval"


def test_pods_that_may_not_be_read_are_done_without(plugin: Plugin, fake: FakeServer):
    fake.forbidden = {"Pod"}
    assert [row["pod"] for row in plugin("nodes", "-o", "json").document] == [""] * 4
    assert " ? " in plugin("nodes").out


def test_shards_are_selected(plugin: Plugin, fake: FakeServer):
    fake.items.append(shard(2, state="Leaderless"))
    assert [row["shard"] for row in plugin("shards", "-o", "json").document] == ["orders/0", "orders/1", "orders/2"]
    assert [row["shard"] for row in plugin("shards", "--leaderless", "-o", "json").document] == ["orders/2"]
    assert [row["shard"] for row in plugin("shards", "--node", "prod-4", "-o", "json").document] == ["orders/1"]
    assert plugin("shards", "--group", "orders").code == 0
    for wrong, known in ((("--group", "order"), "There are orders."),
                         (("--node", "prod-9"), "There are prod-1, prod-2, prod-3, prod-4.")):
        refused = plugin("shards", *wrong)
        assert (refused.code, refused.out) == (1, "")
        assert known in refused.err


def test_explain_shard_of_a_healthy_shard_is_one_plain_sentence(plugin: Plugin, fake: FakeServer):
    lines = [" ".join(line.split()) for line in plugin("explain-shard", "orders/0").out.splitlines()]
    assert lines[-2:] == ["how it is", "note orders/0 is healthy: prod-1 leads, 3 of 3 copies are in sync"]


def test_explain_shard_takes_both_spellings(plugin: Plugin, fake: FakeServer):
    fake.items.append(swap(at="Suspended"))
    for spelling in ("orders/0", "orders-0000"):
        shown = plugin("explain-shard", spelling)
        assert shown.code == 0, shown.err
        assert "blocked  swap is suspended" in shown.out
        assert "-> kubectl tidemark resume swap" in shown.out
    document = plugin("explain-shard", "orders/0", "-o", "json").document
    assert [each["node"] for each in document["members"]] == ["prod-1", "prod-2", "prod-3"]
    assert plugin("explain-shard", "nonsense").code == 2
    assert "There are orders." in plugin("explain-shard", "other/0").err


def test_plan_lists_the_moves_whose_hash_the_operator_shows(plugin: Plugin, fake: FakeServer):
    fake.items[2:4] = [shard(0), shard(1)]
    planned = plugin("swap-node", "prod-1", "--to", "prod-4", "--dry-run", "-o", "json").document
    assert [move["shard"] for move in planned["moves"]] == ["orders/0", "orders/1"]
    act = swap(at="AwaitingApproval")
    act["status"]["plan"]["hash"] = planned["hash"]
    fake.items.append(act)
    document = plugin("plan", "swap", "-o", "json").document
    assert document["planned"] == planned["moves"]
    assert "orders/1" in plugin("plan", "swap").out
    fake.items[-1]["status"]["plan"]["hash"] = PLAN
    assert plugin("plan", "swap", "-o", "json").document["planned"] is None
    assert "cannot be told" in plugin("plan", "swap").out


def test_plan_says_how_it_ended(plugin: Plugin, fake: FakeServer):
    fake.items.append(swap(at="Finished", conditions=(condition("Succeeded", "False", "Rejected", "no node is left"),)))
    assert "ended: Rejected: no node is left" in plugin("plan", "swap").out


def test_version_tells_of_all_three(plugin: Plugin):
    document = plugin("version", "-o", "json").document
    assert document["kubernetes"] == "v1.36.4"
    assert document["clusters"] == [{"name": "prod", "version": "0.1.0", "operatorVersion": "0.1.0", "ready": True}]


# --- acting -------------------------------------------------------------------------------------------------


def created(fake: FakeServer) -> Object:
    (what, kind, manifest), = fake.written
    assert (what, kind) == ("create", "Reconfiguration")
    assert manifest["metadata"]["namespace"] == "data"
    return manifest


@pytest.mark.parametrize(("arguments", "kind", "block", "body"), [
    (("swap-node", "prod-1", "--to", "prod-4"), "NodeSwap", "nodeSwap",
     {"from": "prod-1", "to": {"node": "prod-4"}, "removeSource": "Keep"}),
    (("swap-node", "prod-1", "--provision", "default", "--zone", "zone-b"), "NodeSwap", "nodeSwap",
     {"from": "prod-1", "to": {"provision": {"nodePool": "default", "zone": "zone-b"}}, "removeSource": "Delete"}),
    (("swap-node", "prod-1", "--spread", "--remove-source", "delete"), "NodeSwap", "nodeSwap",
     {"from": "prod-1", "to": {"spread": {}}, "removeSource": "Delete"}),
    (("drain-node", "prod-1"), "NodeSwap", "nodeSwap",
     {"from": "prod-1", "to": {"spread": {}}, "removeSource": "Keep"}),
    (("rebalance", "--node", "prod-4", "--max-move-percent", "10"), "Rebalance", "rebalance",
     {"nodes": ["prod-4"], "leadersOnly": False, "maxMovePercent": 10}),
    (("transfer-leader", "orders/0", "prod-2"), "LeaderTransfer", "leaderTransfer", {"to": "prod-2"}),
])
def test_an_act_is_one_reconfiguration(
    plugin: Plugin, fake: FakeServer, arguments: tuple[str, ...], kind: str, block: str, body: Object
):
    done = plugin(*arguments, "--reason", "OPS-1", "--require-approval", "--name", "mine")
    assert done.code == 0, done.err
    manifest = created(fake)
    spec = manifest["spec"]
    assert manifest["metadata"]["name"] == "mine"
    assert (spec["clusterRef"], spec["type"], spec[block]) == ({"name": "prod"}, kind, body)
    assert (spec["approval"], spec["reason"]) == ("Required", "OPS-1")
    assert spec.get("scope") == ({"logGroups": ["orders"], "shardIDs": [0]} if kind == "LeaderTransfer" else None)
    assert "kubectl tidemark watch mine" in done.out


@pytest.mark.parametrize("command", [
    ("drain-node", "prod-1"), ("swap-node", "prod-1", "--to", "prod-4"), ("rebalance",), ("expand", "orders")])
def test_an_act_may_be_throttled_from_the_start(plugin: Plugin, fake: FakeServer, command: tuple[str, ...]):
    fake.items[1] = group(factor=4)
    assert plugin(*command, "--rate", "50Mi").code == 0
    assert created(fake)["spec"]["throttle"] == {"bytesPerSecondPerNode": "50Mi"}
    fake.written.clear()
    assert plugin(*command, "--rate", "1G", "--max-concurrent", "2").code == 0
    assert created(fake)["spec"]["throttle"] == {"bytesPerSecondPerNode": "1G", "maxConcurrentMoves": 2}
    fake.written.clear()
    assert plugin(*command).code == 0
    assert "throttle" not in created(fake)["spec"]


def test_an_act_may_be_limited_to_a_canary(plugin: Plugin, fake: FakeServer):
    assert plugin("drain-node", "prod-2", "--group", "orders", "--shard", "0", "--shard", "1").code == 0
    assert created(fake)["spec"]["scope"] == {"logGroups": ["orders"], "shardIDs": [0, 1]}
    assert "There are orders." in plugin("drain-node", "prod-2", "--group", "other").err
    moves = plugin("swap-node", "prod-2", "--spread", "--shard", "1", "--dry-run", "-o", "json").document["moves"]
    assert [move["shard"] for move in moves] == ["orders/1"]
    made = plugin("swap-node", "prod-2", "--provision", "default", "--shard", "0", "--dry-run", "-o", "json").document
    assert [move["shard"] for move in made["moves"]] == ["orders/0"]
    assert len([what for what, _kind, _manifest in fake.written if what == "create"]) == 1


@pytest.mark.parametrize(("command", "declared"), [("expand", 4), ("contract", 2)])
def test_a_step_to_the_declared_factor(plugin: Plugin, fake: FakeServer, command: str, declared: int):
    assert "every shard of orders has the 3 copies that it declares" in plugin(command, "orders").err
    fake.items[1] = group(factor=declared)
    more = ("--below-three",) if command == "contract" else ()
    assert plugin(command, "orders", *more).code == 0
    body = created(fake)["spec"][command]
    assert body == {"logGroup": "orders", "factor": declared, **({"belowThree": "Allowed"} if more else {})}
    fake.items[1] = group(factor=6)
    assert "is a step of one" in plugin(command, "orders").err


def test_a_dry_run_creates_nothing(plugin: Plugin, fake: FakeServer):
    document = plugin("swap-node", "prod-1", "--spread", "--dry-run", "-o", "json").document
    assert [what for what, _kind, _manifest in fake.written] == ["dry-run"]
    assert document["moves"] == [{"shard": "orders/0", "operation": "Swap", "from": "prod-1", "to": "prod-4"}]
    fake.written.clear()
    provision = plugin("swap-node", "prod-1", "--provision", "default", "--dry-run", "-o", "json").document
    assert [(move["shard"], move["to"]) for move in provision["moves"]] == [("orders/0", "a new node")]
    assert provision["hash"].startswith("sha256:")
    nowhere = plugin("swap-node", "prod-1", "--provision", "other", "--dry-run")
    assert nowhere.code == 1 and "other" in nowhere.err
    refused = plugin("swap-node", "prod-2", "--to", "prod-4", "--dry-run", "-o", "json")
    assert (refused.code, refused.document["error"]) == (1, "TargetNotEligible")


def test_wait_follows_to_the_end(plugin: Plugin, fake: FakeServer):
    moving = swap("mine", activeMoves=[])
    moving["status"]["progress"] = {"completed": 1, "summary": "1/2", "percent": 50, "bytesMoved": "3145728"}
    over = swap("mine", at="Finished", conditions=(condition("Succeeded", reason="Completed"),))
    over["status"]["progress"] = {"completed": 2, "summary": "2/2", "percent": 100, "bytesMoved": "6291456"}
    waiting = swap("mine", at="AwaitingApproval")
    for item in (waiting, moving, over):
        item["status"]["plan"]["bytes"] = "6291456"
    fake.changes = [swap("other", at="Finished"), waiting, moving, over]
    fake.items.append(swap("mine", at="Planning"))
    done = plugin("drain-node", "prod-1", "--name", "mine", "--wait", "-o", "json")
    assert done.code == 0, done.err
    assert (done.document["moves"], done.document["bytesMoved"], done.document["stage"]) == (2, "6291456", "Finished")
    for told in ("AwaitingApproval · 0/2 moves · 0 % · 6.0 MiB to copy",
                 "Moving · 1/2 moves · 50 % · 3.0 MiB of 6.0 MiB copied",
                 "Finished · 2/2 moves · 100 % · 6.0 MiB copied"):
        assert f"mine: {told}" in done.err
    assert "kubectl tidemark approve mine" in done.err


def test_what_fails_or_is_deleted_is_exit_code_1(plugin: Plugin, fake: FakeServer):
    fake.items.append(swap())
    fake.changes = [swap(at="Finished", conditions=(condition("Succeeded", "False", "Canceled", "spec.cancel"),))]
    failed = plugin("watch", "swap", "-o", "json")
    assert (failed.code, failed.document["error"]) == (1, "Canceled")
    assert "swap: Canceled: spec.cancel" in failed.err
    assert plugin("watch", "swop").code == 1


def test_following_may_end_and_it_goes_on(plugin: Plugin, fake: FakeServer):
    fake.items.append(swap())
    fake.changes = [{"kind": "Silence", "then": lambda: os.kill(os.getpid(), signal.SIGINT)}]
    interrupted = plugin("watch", "swap")
    assert interrupted.code == 130
    assert "swap goes on by itself: kubectl tidemark watch swap" in interrupted.err
    fake.changes = [{"kind": "Silence", "then": lambda: None}]
    late = plugin("watch", "swap", "--timeout", "0.2", "-o", "json")
    assert (late.code, late.document["error"]) == (1, "TIMEOUT")
    assert fake.written == []


def test_a_server_that_goes_away_is_waited_for(
    plugin: Plugin, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
):
    fake.items.append(swap())
    listed, looks = fake.list, iter(range(100))

    async def sometimes(kind: Any, namespace: str, labels: str = "") -> Any:
        if next(looks) == 1:
            raise KubeAway("connection refused")
        return await listed(kind, namespace, labels)

    monkeypatch.setattr(fake, "list", sometimes)
    monkeypatch.setattr(room, "RETRY_S", 0.01)
    fake.changes = [swap(at="Finished", conditions=(condition("Succeeded", reason="Completed"),))]
    done = plugin("watch", "swap")
    assert done.code == 0
    assert "is not reached, waiting for it: connection refused" in done.err and "is back" in done.err


@pytest.mark.parametrize(("refusals", "code"), [(1, 0), (2, 1)])
def test_a_token_that_ran_out_is_renewed_once(
    plugin: Plugin, fake: FakeServer, monkeypatch: pytest.MonkeyPatch, refusals: int, code: int
):
    fake.items.append(swap())
    listed, looks, logins = fake.list, iter(range(100)), []

    async def sometimes(kind: Any, namespace: str, labels: str = "") -> Any:
        if 1 <= next(looks) <= refusals:
            raise KubeRefused(401, "Unauthorized", "Unauthorized")
        return await listed(kind, namespace, labels)

    monkeypatch.setattr(fake, "list", sometimes)
    monkeypatch.setattr(room, "KubeApi", lambda configuration: logins.append(configuration) or fake)
    fake.changes = [swap(at="Finished", conditions=(condition("Succeeded", reason="Completed"),))]
    assert (plugin("watch", "swap").code, len(logins)) == (code, 2)


# --- what runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "changes"), [
    ("suspend", {"suspend": True}), ("resume", {"suspend": False}), ("cancel", {"cancel": True})])
def test_what_runs_is_told_by_its_spec(plugin: Plugin, fake: FakeServer, command: str, changes: Object):
    fake.items.append(swap())
    assert plugin(command, "swap").code == 0
    assert fake.written == [("merge", "Reconfiguration/swap", {"spec": changes})]
    fake.items[-1]["status"]["stage"] = "Finished"
    assert "swap is over" in plugin(command, "swap").err
    refused = plugin(command, "swop")
    assert (refused.code, len(fake.written)) == (1, 1)
    assert "There are swap." in refused.err


@pytest.mark.parametrize(("arguments", "changes", "said"), [
    (("--rate", "50Mi"), {"bytesPerSecondPerNode": "50Mi"}, "throttled: 50Mi bytes a second per node"),
    (("--max-concurrent", "2"), {"maxConcurrentMoves": 2}, "throttled: 2 shards at a time"),
    (("--rate", "1.5G", "--max-concurrent", "64"), {"bytesPerSecondPerNode": "1.5G", "maxConcurrentMoves": 64},
     "throttled: 1.5G bytes a second per node, 64 shards at a time"),
    (("--default",), None, "throttled: as the cluster says"),
])
def test_what_runs_is_throttled_in_the_fields_that_are_named(
    plugin: Plugin, fake: FakeServer, arguments: tuple[str, ...], changes: Object | None, said: str
):
    fake.items.append(swap())
    done = plugin("throttle", "swap", *arguments)
    assert done.code == 0, done.err
    assert said in done.out
    assert fake.written == [("merge", "Reconfiguration/swap", {"spec": {"throttle": changes}})]
    fake.items[-1]["status"]["stage"] = "Finished"
    over = plugin("throttle", "swap", *arguments, "-o", "json")
    assert (over.code, over.document["error"], len(fake.written)) == (1, "FINISHED", 1)


@pytest.mark.parametrize("rate", ["fast", "50MB", "-1", "1e6", "0", "0.4", "50 Mi", "50Mi/s", "9" * 40])
def test_a_rate_that_is_none_is_named(plugin: Plugin, fake: FakeServer, rate: str):
    fake.items.append(swap())
    for command in (("throttle", "swap"), ("drain-node", "prod-1")):
        refused = plugin(*command, f"--rate={rate}")
        assert (refused.code, fake.written) == (2, [])
        said = " ".join(refused.err.split())
        assert "--rate" in said and repr(rate) in said and "as in 50Mi" in said


def test_the_throttle_of_an_act_is_shown_with_its_plan(plugin: Plugin, fake: FakeServer):
    fake.items.append(swap(spec={"throttle": {"bytesPerSecondPerNode": "50Mi", "maxConcurrentMoves": 2}}))
    assert "throttle: 50Mi bytes a second per node, 2 shards at a time" in plugin("plan", "swap").out
    fake.items[-1] = swap()
    assert "throttle" not in plugin("plan", "swap").out


def test_a_plan_is_approved_by_the_hash_that_was_shown(plugin: Plugin, fake: FakeServer):
    fake.items.append(swap(at="AwaitingApproval", spec={"approval": "Required"}))
    unasked = plugin("approve", "swap")
    assert (unasked.code, fake.written) == (2, [])
    assert f"--plan {PLAN}" in unasked.err
    other = plugin("approve", "swap", "--plan", "sha256:1111111111")
    assert (other.code, fake.written) == (1, [])
    assert f"is {PLAN}, not sha256:1111111111" in other.err
    done = plugin("approve", "swap", "--yes")
    assert done.code == 0
    assert "2 moves" in done.err and PLAN in done.out
    assert fake.written == [("merge", "Reconfiguration/swap", {"spec": {"approvedPlan": PLAN}})]
    fake.written.clear()
    fake.items[-1]["spec"]["approvedPlan"] = PLAN
    assert "was approved already" in plugin("approve", "swap", "--yes").out
    assert fake.written == []


@pytest.mark.parametrize(("act", "why"), [
    (swap(), "asks for no approval"), (swap(at="Finished", spec={"approval": "Required"}), "is over"),
    (swap(spec={"approval": "Required"}, at="Planning", plan=None), "has no plan yet")])
def test_what_cannot_be_approved(plugin: Plugin, fake: FakeServer, act: Object, why: str):
    fake.items.append(act)
    refused = plugin("approve", "swap", "--yes")
    assert (refused.code, fake.written) == (1, [])
    assert why in refused.err


def test_restarts_and_pauses_are_annotations(plugin: Plugin, fake: FakeServer):
    assert plugin("restart", "prod-2").code == plugin("restart", "prod").code == 0
    assert [(what, name) for what, name, _changes in fake.written] == [
        ("merge", "Pod/prod-2"), ("merge", "TidemarkCluster/prod")]
    for _what, _name, changes in fake.written:
        (key, _time), = changes["metadata"]["annotations"].items()
        assert key == "tidemark.dev/restartedAt"
    fake.written.clear()
    assert plugin("pause").code == plugin("unpause", "--cluster", "prod").code == 0
    key = "tidemark.dev/pause-reconciliation"
    assert [changes["metadata"]["annotations"] for _what, _name, changes in fake.written] == [
        {key: "true"}, {key: None}]
    assert "There are prod, prod-1, prod-2, prod-3, prod-4." in plugin("restart", "prod-9").err


# --- wrong things -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [
    ("nonsense",), ("swap-node", "prod-1"), ("swap-node", "prod-1", "--to", "prod-2", "--spread"),
    ("swap-node", "prod-1", "--to", "prod-2", "--zone", "zone-a"), ("rebalance", "--max-move-percent", "0"),
    ("throttle", "swap"), ("throttle", "swap", "--default", "--rate", "50Mi"), ("throttle", "--rate", "50Mi"),
    ("throttle", "swap", "--max-concurrent", "0"), ("transfer-leader", "orders/0", "prod-2", "--rate", "50Mi"),
    ("status", "-o", "xml"), ("approve",), ()])
def test_wrong_usage_is_exit_code_2(plugin: Plugin, fake: FakeServer, arguments: tuple[str, ...]):
    assert (plugin(*arguments).code, fake.written) == (2, [])


def test_which_cluster_is_meant(plugin: Plugin, fake: FakeServer):
    assert "There are prod." in plugin("status", "prodd").err
    fake.items.append(cluster(name="test"))
    two = plugin("status")
    assert two.code == 2
    assert "there are 2 clusters in namespace data: prod, test" in two.err
    assert plugin("status", "prod").code == 0
    none = plugin("status", "-n", "elsewhere")
    assert none.code == 1
    assert "no TidemarkCluster in namespace elsewhere" in none.err


@pytest.mark.parametrize(("error", "says"), [
    (KubeRefused(401, "Unauthorized", "Unauthorized"), "does not know you"),
    (KubeRefused(403, "Forbidden", "tidemarkclusters is forbidden: User bob"), "User bob"),
    (KubeRefused(404, "NotFound", "the server could not find the requested resource"), "definitions installed"),
    (KubeRefused(422, "Invalid", "spec.nodeSwap: from and to must differ"), "from and to must differ"),
    (KubeAway("connection refused"), "is not reached: connection refused"),
])
def test_what_the_server_refuses_is_said_in_a_line(
    plugin: Plugin, fake: FakeServer, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
):
    async def refuse(*_arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(fake, "list", refuse)
    failed = plugin("status", "-o", "json")
    assert failed.code == 1
    assert failed.document["message"]
    assert says in failed.err
    assert "Traceback" not in failed.err


async def test_kubeconfigs_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    good = {"apiVersion": "v1", "kind": "Config", "current-context": "here", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "data"}},
                         {"name": "there", "context": {"cluster": "c", "user": "u"}}]}
    file = tmp_path / "config"
    file.write_text(json.dumps(good))
    configuration, namespace = await load_user_configuration(str(file), "")
    assert (configuration.host, namespace) == ("https://127.0.0.1:1", "data")
    assert (await load_user_configuration(str(file), "there"))[1] == "default"
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{file}")
    assert (await load_user_configuration("", ""))[1] == "data"
    for wrong in ("", "{", "[]", "kind: Config"):
        file.write_text(wrong)
        with pytest.raises(ValueError, match=r"no way to the API server|no kubeconfig"):
            await load_user_configuration(str(file), "")
        with pytest.raises(ValueError, match=r"^no way to the API server: .+$"):
            await load_configuration(file)
    file.write_text(json.dumps(good))
    with pytest.raises(ValueError, match="nowhere"):
        await load_user_configuration(str(file), "nowhere")
    with pytest.raises(ValueError, match="no kubeconfig"):
        await load_user_configuration(str(tmp_path / "absent"), "")


def test_the_entry_points_are_there():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for script, function in (("tidemark", entry.main), ("kubectl-tidemark", entry.kubectl)):
        module, _, name = project["scripts"][script].partition(":")
        assert getattr(importlib.import_module(module), name) is function


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for module in [name for name in sys.modules if name.startswith("tidemark_cli.kubectl")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "tidemark_operator.kube.api")
    monkeypatch.setitem(sys.modules, "kubernetes.aio", None)
    with pytest.raises(SystemExit) as ended:
        entry.kubectl()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "'kubernetes.aio' is not installed" in said
    assert "pip install 'tidemarkdb[cli,operator]'" in said


# --- report -------------------------------------------------------------------------------------------------


def test_a_report_holds_objects_and_logs_and_no_secret(plugin: Plugin, fake: FakeServer, tmp_path: Path):
    fake.items += [swap(), {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e1", "namespace": "data"},
        "regarding": {"name": "prod-1"}, "eventTime": "2026-11-20T09:00:00Z", "note": "password=hunter2"}, {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e2", "namespace": "data"},
        "regarding": {"name": "somebody-elses"}, "note": "other"}]
    fake.forbidden = {"Service"}
    file = tmp_path / "report.tar.gz"
    done = plugin("report", "--file", str(file), "--operator-namespace", "", "-o", "json")
    assert done.code == 0, done.err
    assert "secrets" not in fake.asked
    assert file.stat().st_mode & 0o077 == 0
    with tarfile.open(file) as archive:
        held = {entry.name.removeprefix("tidemark-prod/"): archive.extractfile(entry).read().decode()  # type: ignore[union-attr]
                for entry in archive.getmembers()}
    assert sorted(held) == sorted(done.document["entries"])
    assert {"status.yaml", "versions.yaml", "objects/reconfigurations.yaml", "logs/prod-1.node.log",
            "logs/prod-1.node.previous.log", "not-read.txt"} <= set(held)
    everything = "".join(held.values())
    assert "hunter2" not in everything and "abc123" not in everything
    assert "somebody-elses" not in everything
    assert "value: eu" in held["objects/pods.yaml"] and "DB_PASSWORD" in held["objects/pods.yaml"]
    assert "services is forbidden" in held["not-read.txt"]
    assert yaml.safe_load(held["status.yaml"])["cluster"] == "prod"
    assert "exists" in plugin("report", "--file", str(file)).err


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (["--kubeconfig", "f", "status", "-o", "json"], ["status", "--kubeconfig", "f", "-o", "json"]),
        (["--kubeconfig=f", "-n", "tide", "nodes"], ["nodes", "--kubeconfig=f", "-n", "tide"]),
        (["status", "--kubeconfig", "f"], ["status", "--kubeconfig", "f"]), (["--help"], ["--help"]), ([], []),
        (["--kubeconfig"], ["--kubeconfig"]),
    ],
)
def test_what_kubectl_takes_in_front_of_a_command_is_taken_there(given: list[str], taken: list[str]):
    assert command_first(given) == taken
