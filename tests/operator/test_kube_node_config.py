"""Configuration of nodes: names that a node knows become its flags, and anything else is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from test_kube_pods import NODES, SPEC, cluster
from tidemark_node import disk, settings
from tidemark_node.settings import parse
from tidemark_operator.kube.builders import node_pod, revision
from tidemark_operator.kube.node_config import (
    FRAME_BYTES_MAX_MIN,
    REPAIR_MEMORY_BYTES_MIN,
    RESERVE_BYTES_MIN,
    SETTINGS,
    problem,
)
from tidemark_operator.kube.specs import unsupported


def pools(**config: str) -> list[dict[str, Any]]:
    return [{**SPEC["nodePools"][0], "config": config}, SPEC["nodePools"][1]]


def test_a_pools_own_settings_come_before_those_of_the_cluster() -> None:
    own = pools(**{"reclaim-seconds": "7"})
    made = cluster(config={"append-bytes-max": "1024", "reclaim-seconds": "5"}, nodePools=own)
    arguments = node_pod(made, NODES[0])["spec"]["containers"][0]["args"]
    assert arguments[-2:] == ["--append-bytes-max=1024", "--reclaim-seconds=7"]
    assert revision(made, "general") != revision(cluster(), "general")


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_a_flag_of_a_node(name: str) -> None:
    least = {
        "disk-reserve-bytes": RESERVE_BYTES_MIN, "frame-bytes-max": FRAME_BYTES_MAX_MIN,
        "repair-memory-bytes": REPAIR_MEMORY_BYTES_MIN}
    value = least.get(name, 77)
    given = parse(["--node=n1", "--data=somewhere", f"--{name}={value}"])
    assert getattr(given, name.replace("-", "_")) == value


def test_node_and_operator_ask_for_the_same_least() -> None:
    assert disk.RESERVE_BYTES_MIN == RESERVE_BYTES_MIN
    assert settings.FRAME_BYTES_MAX_MIN == FRAME_BYTES_MAX_MIN
    assert settings.REPAIR_MEMORY_BYTES_MIN == REPAIR_MEMORY_BYTES_MIN
    with pytest.raises(SystemExit):
        parse(["--node=n1", "--data=somewhere", f"--disk-reserve-bytes={RESERVE_BYTES_MIN - 1}"])


@pytest.mark.parametrize(("config", "told"), [
    ({"node": "other"}, "spec.config: 'node' is no setting of a node; those are append-bytes-max, "),
    ({"append-bytes-max": "0"}, "spec.config: append-bytes-max is '0', and must be a positive whole number"),
    ({"append-bytes-max": "128Mi"}, "append-bytes-max is '128Mi'"),
    ({"reclaim-seconds": "-1"}, "reclaim-seconds is '-1', and must be a whole number of seconds, at most 3600"),
    ({"reclaim-seconds": "3601"}, "reclaim-seconds is '3601'"),
    ({"reclaim-seconds": "0"}, ""),
    ({"disk-reserve-bytes": "402653183"}, "disk-reserve-bytes is '402653183', and must be a whole number, 402653184 "),
    ({"disk-reserve-bytes": "402653184"}, ""),
    ({"frame-bytes-max": "67108863"}, "frame-bytes-max is '67108863', and must be a whole number, 67108864 at least"),
    ({"frame-bytes-max": "67108864"}, ""),
    ({"repair-memory-bytes": "1048575"}, "repair-memory-bytes is '1048575', and must be a whole number, 1048576 at"),
    ({"repair-memory-bytes": "1048576"}, ""),
])
def test_what_a_node_would_not_take_is_refused(config: dict[str, str], told: str) -> None:
    found = problem(cluster(config=config).spec)
    assert (told in found) if told else found == ""


def test_a_pool_is_named_by_its_place() -> None:
    found = unsupported(cluster(nodePools=pools(verbose="1")).spec)
    assert "spec.nodePools[0].config: 'verbose' is no setting" in found
