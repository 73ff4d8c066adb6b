"""Commands of documents on a real local cluster, whose leader falls in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_harness import Cli, holds

from tests.waiting import wait_until


@pytest.fixture
def settings(on: Cli, tmp_path: Path) -> str:
    """A group of documents: two shards, three copies, led and fully replicated."""
    wait_until(lambda: holds(on, "cluster", "dev", "MetadataStoreReachable"), "the operator says that etcd answers")
    name = "settings"
    file = tmp_path / "group.json"
    file.write_text(json.dumps({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": "dev"}, "kind": "Documents", "shards": 2,
            "replication": {"factor": 3, "spread": "Node"},
        },
    }))
    applied = on("apply", "-f", str(file))
    assert applied.code == 0, applied.err
    wait_until(lambda: holds(on, "loggroup", name, "Ready", "FullyReplicated"), f"{name} is led and fully replicated")
    return name


def test_documents_stay_over_a_leader_kill_and_a_pin_shows_what_was(on: Cli, settings: str, tmp_path: Path):
    lines = tmp_path / "lines.ndjson"
    written = [{"key": f"{number:04d}", "value": {"n": number}} for number in range(2_000)]
    lines.write_text("".join(json.dumps(each) + "\n" for each in written))
    put = on("put", settings, "--file", str(lines), "--json")
    assert (put.code, put.document["acked"], put.document["complete"]) == (0, 2_000, True), put.err
    pin = on("pin", "create", settings, "before", "--ttl", "30m", "--json")
    assert sum(shard["documents"] for shard in pin.document["shards"]) == 2_000
    changed = on("put", settings, "0007", "new", "--json").document
    assert on("put", settings, "0007", "late", "--expected", "0", "--json").document["error"] == "CONDITION_FAILED"
    (info,) = on("shards", settings, "--json").document["groups"]
    leader = info["shards"][changed["shard"]]["leader"]
    assert on("dev", "kill", leader).code == 0
    assert on("delete", settings, "0008").code == 0
    assert on("get", settings, "0007", "--min-seqno", str(changed["seqno"])).out == "new\n"
    assert on("get", settings, "0007", "0008", "--at", "before").out == '{"n":7}\n{"n":8}\n'
    assert on("get", settings, "0008").code == 1
    keys = on("scan", settings, "--ordered", "--keys-only").out.split()
    assert keys == [f"{number:04d}" for number in range(2_000) if number != 8]
    assert len(on("scan", settings, "--at", "before", "--jsonl").out.splitlines()) == 2_000
    assert on("dev", "start", leader).code == 0
    assert on("pin", "release", settings, "before").code == 0
    assert on("get", settings, "0007", "--at", "before", "--json").document["error"] == "NOT_PINNED"
    assert on("delete", "loggroup", settings).code == 0
