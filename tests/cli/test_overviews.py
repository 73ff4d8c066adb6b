"""How a cluster is and why it does not go on, without Kubernetes; and how a stalled act is shown."""

from __future__ import annotations

import io
from typing import Any

import pytest
from cli_harness import Cli
from plugin_objects import NODES, cluster, condition, group, node, shard, swap
from rich.console import Console
from rich.progress import Progress
from tidemark_cli.kubectl.state import State
from tidemark_cli.overviews import diagnosis, local_advice
from tidemark_cli.reconfigurations import Follower
from tidemark_cli.views import bad_news
from tidemark_wire.version import VERSION

from tests.waiting import wait_until

Object = dict[str, Any]


def seen(*nodes: Object, conditions: tuple[Object, ...] = (), acts: tuple[Object, ...] = ()) -> State:
    nodes = nodes or tuple(node(each) for each in NODES)
    return State(cluster(*nodes, conditions=conditions), (group(),), (shard(0),), acts, None)


def failed(state: State, version: str = VERSION) -> list[str]:
    return [each["check"] for each in diagnosis(state, version) if not each["ok"]]


def test_a_healthy_cluster_passes_every_check():
    assert failed(seen()) == []


@pytest.mark.parametrize(
    ("kind", "status", "check"),
    [
        ("MetadataStoreReachable", "False", "etcd"), ("NodesDisconnected", "True", "links"),
        ("DiskFull", "True", "disks"), ("ClockSkew", "True", "clocks"), ("CertificatesValid", "False", "certificates"),
        ("Available", "False", "leaders"), ("FullyReplicated", "False", "copies"),
    ],
)
def test_each_condition_fails_its_check_and_says_what_to_do(kind: str, status: str, check: str):
    state = seen(conditions=(condition(kind, status, "SomeReason", "some message"),))
    assert failed(state) == [check]
    (found,) = [each for each in diagnosis(state, VERSION) if not each["ok"]]
    assert "SomeReason: some message" in found["what"]
    assert found["todo"]


def test_nodes_that_are_down_and_versions_that_differ_fail():
    down = node(NODES[0], ready=False, state="Down")
    assert failed(seen(down, *(node(each) for each in NODES[1:]))) == ["nodes"]
    old = node(NODES[0], version="0.0.1")
    assert "versions" in failed(seen(old, *(node(each) for each in NODES[1:])))
    assert "this program" in failed(seen(), version="99.0.0")


def test_a_stalled_act_fails_and_names_the_command_that_says_more():
    act = swap(conditions=(condition("Stalled", "True", "NodeUnavailable", "prod-4 is down"),))
    (found,) = [each for each in diagnosis(seen(acts=(act,)), VERSION) if not each["ok"]]
    assert found["check"] == "reconfigurations"
    assert found["todo"] == "tidemark describe reconfiguration swap"
    assert bad_news("Reconfiguration", [act]) == ["swap: Stalled (NodeUnavailable): prod-4 is down"]


def test_advice_of_the_plugin_becomes_advice_of_this_program():
    (found,) = local_advice([{"todo": "kubectl tidemark watch swap-1"}])
    assert found["todo"] == "tidemark describe reconfiguration swap-1"


def test_what_stalls_an_act_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]):
    follower = Follower(Progress(console=Console(file=io.StringIO())), "swap")
    stalled = condition("Stalled", "True", "NodeUnavailable", "prod-4 is down, " * 20)
    for conditions in ((), (stalled,), (stalled,), ()):
        follower.see(swap(conditions=conditions))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2, "one line when it stalls, one when it goes on"
    assert "swap stalled: NodeUnavailable: prod-4 is down" in said[0]
    assert "swap goes on" in said[1]


# --- on a cluster


def test_a_cluster_is_shown_and_described(on: Cli, group: str):
    document = on("status", "--json").document
    assert document["cluster"] == "dev"
    assert group in [each["name"] for each in document["logGroups"]]
    assert group in on("status").out
    rows = on("nodes", "--json").document["nodes"]
    assert {"dev-1", "dev-2", "dev-3", "dev-4"} <= {row["name"] for row in rows}
    assert "dev-1" in on("nodes").out
    shown = on("explain", "shard", f"{group}/0", "--json")
    assert shown.document["shard"] == f"{group}/0"
    assert "copies are in sync" in on("explain", "shard", f"{group}/0").out
    described = on("describe", "group", group, "--json").document
    assert len(described["shards"]) == 2
    assert "CONDITION" in on("describe", "group", group).out
    leader = described["shards"][0]["leader"]
    assert f"{group}/0" in on("describe", "node", leader).out
    for kind in ("group", "node", "reconfiguration"):
        missing = on("describe", kind, "nothing")
        assert missing.code == 1
        assert "'nothing'" in missing.err


def test_the_doctor_names_the_process_that_is_dead_and_the_command_to_start_it(on: Cli, group: str):
    assert group in on("status").out
    assert on("dev", "kill", "dev-4").code == 0
    try:
        wait_until(lambda: {"processes", "nodes"} <= set(failing(on)), "the operator sees the dead node")
        result = on("doctor")
        assert result.code == 1
        assert "-> tidemark dev start dev-4" in result.out
        assert "dev-4" in on("describe", "node", "dev-4").out
        assert {each["node"] for each in on("describe", "node", "dev-4", "--json").document["findings"]} == {"dev-4"}
    finally:
        assert on("dev", "start", "dev-4").code == 0
    wait_until(lambda: on("doctor", "--json").code == 0, "all is well again")


def failing(on: Cli) -> list[str]:
    return [each["check"] for each in on("doctor", "--json").document["checks"] if not each["ok"]]
