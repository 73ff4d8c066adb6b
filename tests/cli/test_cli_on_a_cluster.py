"""Commands on a real local cluster: results, JSON documents, errors with what to do next, exit codes."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tidemark
from cli_harness import Cli
from tidemark_cli.records import record_document

from tests.waiting import PATIENCE_S, wait_until

GROUP = """
apiVersion: tidemark.dev/v1alpha1
kind: LogGroup
metadata:
  name: {name}
spec:
  clusterRef: {{name: dev}}
  shards: 1
  replication: {{factor: {factor}, spread: Node}}
"""


def leader_of(on: Cli, group: str, shard: int = 0) -> str:
    def leader() -> str:
        (info,) = on("shards", group, "--json").document["groups"]
        return info["shards"][shard]["leader"]

    return wait_until(leader, f"shard {shard} of {group} has a leader")


def members_of(on: Cli, group: str, shard: int = 0) -> list[str]:
    (info,) = on("shards", group, "--json").document["groups"]
    return info["shards"][shard]["ensemble"]


# --- append and read ----------------------------------------------------------------------------------------


def test_lines_come_back_in_order_per_key(on: Cli, group: str, tmp_path: Path):
    file = tmp_path / "lines.ndjson.gz"
    lines = [json.dumps({"id": f"k{number % 7}", "n": number}) for number in range(700)]
    with gzip.open(file, "wt") as out:
        out.write("\n".join(lines) + "\n")
    appended = on("append", group, str(file), "--key-field", "id", "--json")
    assert appended.code == 0, appended.err
    assert appended.document["acked"] == 700
    assert appended.document["complete"] is True
    back = on("read", group, "--keys")
    assert back.code == 0
    by_key: dict[str, list[int]] = {}
    for line in back.out.splitlines():
        key, value = line.split("\t")
        by_key.setdefault(key, []).append(json.loads(value)["n"])
    assert {key: sorted(numbers) for key, numbers in by_key.items()} == by_key
    assert sum(map(len, by_key.values())) == 700


def test_read_writes_one_document_or_one_line_per_record(on: Cli, group: str, tmp_path: Path):
    file = tmp_path / "lines"
    file.write_bytes(b"plain\n\xff\xfe\n\nlast")
    assert on("append", group, str(file)).code == 0
    document = on("read", group, "--json").document
    assert sorted(record.get("value", record.get("value_base64")) for record in document) == ["//4=", "last", "plain"]
    assert {record["key"] for record in document} == {None}
    lines = on("read", group, "--jsonl", "--limit", "2").out.splitlines()
    assert len(lines) == 2
    assert all("offset" in json.loads(line) for line in lines)
    assert on("read", group, "--json", "--shard", "0", "--from", "100000").document == []


def test_a_reader_of_the_output_may_stop_early(state: Path, on: Cli, group: str, tmp_path: Path):
    file = tmp_path / "lines"
    file.write_text("x" * 1000 + "\n" * 2 + ("y" * 1000 + "\n") * 500)
    assert on("append", group, str(file)).code == 0
    command = [sys.executable, "-m", "tidemark_cli", "read", group, "--dir", str(state)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE_S) == 0


def test_until_and_from_bound_each_shard(on: Cli, group: str, tmp_path: Path):
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(50)))
    assert on("append", group, str(file)).code == 0
    (shard,) = {record["shard"] for record in on("read", group, "--json").document}
    some = on("read", group, "--json", "--shard", str(shard), "--from", "5", "--until", "9").document
    assert [record["offset"] for record in some] == [5, 6, 7, 8, 9]


def test_local_durability_can_be_asked_for(on: Cli, group: str, tmp_path: Path):
    file = tmp_path / "lines"
    file.write_text("x\n")
    assert on("append", group, str(file), "--local", "--json").document["durability"] == "LOCAL"


def test_a_line_without_the_key_field_is_named_and_where_to_go_on(on: Cli, group: str, tmp_path: Path):
    file = tmp_path / "lines"
    file.write_text('{"id":"a"}\n{"id":"b"}\n{"other":1}\n')
    result = on("append", group, str(file), "--key-field", "id")
    assert result.code == 1
    assert "line 3: there is no field 'id'" in result.err
    assert "--skip 2" in result.err
    assert len(on("read", group, "--json").document) == 2


def test_interrupted_append_says_how_to_go_on(state: Path, on: Cli, group: str):
    command = [sys.executable, "-m", "tidemark_cli", "append", group, "-", "--json", "--dir", str(state)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdin is not None
    process.stdin.write("one\ntwo\nthree\n" * 20_000)
    process.stdin.flush()
    wait_until(lambda: on("read", group, "--json", "--limit", "1").document, "the first record is readable")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=40)
    assert process.returncode == 130, err
    document = json.loads(out)
    assert document["complete"] is False
    assert f"go on with --skip {document['resume_skip']}" in err
    unknown = document["outcomes"]["unknown"]  # where the machine was slow, some had no answer in time
    assert document["resume_skip"] <= document["acked"]
    assert document["acked"] <= len(on("read", group, "--json").document) <= document["acked"] + unknown


def test_tail_follows_until_interrupted(state: Path, on: Cli, group: str, tmp_path: Path):
    command = [sys.executable, "-m", "tidemark_cli", "read", group, "--tail", "--jsonl", "--dir", str(state)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    file = tmp_path / "lines"
    file.write_text("later\n")
    assert on("append", group, str(file)).code == 0
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["value"] == "later"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "interrupted after 1 records" in err


# --- objects and shards ---------------------------------------------------------------------------------------


def test_shards_and_objects_are_shown_to_people_and_programs(on: Cli, group: str):
    leader = leader_of(on, group)
    assert f"{leader}*" in on("shards", group).out
    assert on("get", "loggroup", group, "--json").document["metadata"]["name"] == group
    assert group in on("get", "groups").out
    names = [item["metadata"]["name"] for item in on("get", "shard", "--json").document["items"]]
    assert f"{group}-0000" in names
    assert "dev" in on("get", "cluster").out
    assert on("get", "tks").code == 0


def test_apply_twice_changes_nothing_and_dry_run_writes_nothing(on: Cli, group: str, tmp_path: Path):
    manifest = on("get", "loggroup", group, "--json").document
    file = tmp_path / "again.json"
    file.write_text(json.dumps({key: manifest[key] for key in ("apiVersion", "kind", "spec")} | {
        "metadata": {"name": group}
    }))
    assert on("apply", "-f", str(file), "--json").document["applied"] == [f"LogGroup/{group} unchanged"]
    file.write_text(file.read_text().replace(group, "other-group"))
    assert on("apply", "-f", str(file), "--dry-run").code == 0
    assert on("get", "loggroup", "other-group").code == 1


def test_a_wrong_manifest_is_refused_with_its_field(on: Cli, tmp_path: Path):
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "apiVersion: tidemark.dev/v1alpha1\nkind: LogGroup\nmetadata: {name: wrong}\n"
        "spec: {clusterRef: {name: dev}, shards: zero}\n"
    )
    result = on("apply", "-f", str(file))
    assert result.code == 1
    assert "INVALID_SPEC" in result.err
    assert "spec.shards" in result.err
    assert "hint:" in result.err


# --- acts ------------------------------------------------------------------------------------------------------


def test_transfer_swap_expand_and_contract_one_shard(on: Cli, group: str, tmp_path: Path):
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(200)))
    assert on("append", group, str(file)).code == 0
    leader, members = leader_of(on, group), members_of(on, group)
    (spare,) = {"dev-1", "dev-2", "dev-3", "dev-4"} - set(members)
    follower = next(node for node in members if node != leader)

    moved = on("transfer", group, "0", "--to", follower, "--json")
    assert moved.code == 0, moved.err
    assert moved.document["leader"] == follower

    refused = on("swap", group, "0", "--from", follower, "--to", spare)
    assert refused.code == 1
    assert "LEADER_CANNOT_LEAVE" in refused.err
    assert "hint:" in refused.err

    swapped = on("swap", group, "0", "--from", leader, "--to", spare, "--json")
    assert swapped.code == 0, swapped.err
    assert spare in swapped.document["ensemble"]
    assert leader not in swapped.document["ensemble"]

    again = on("swap", group, "0", "--from", spare, "--to", follower, "--json")
    assert again.code == 1
    assert again.document["error"] == "ALREADY_MEMBER"

    expanded = on("expand", group, "0", "--to", leader, "--json")
    assert expanded.code == 0, expanded.err
    assert len(expanded.document["ensemble"]) == 4
    contracted = on("contract", group, "0", "--from", leader, "--json")
    assert contracted.code == 0, contracted.err
    below = on("contract", group, "0", "--from", spare)
    assert below.code == 1
    assert "BELOW_MINIMUM" in below.err
    assert len(on("read", group, "--json").document) == 200


def test_a_whole_node_is_relieved_of_its_leaderships(on: Cli, group: str):
    leader = leader_of(on, group)
    result = on("transfer", "--from", leader, "--json")
    assert result.code == 0, result.err
    assert result.document["completed"] >= 1
    assert leader_of(on, group) != leader


def test_unknown_names_are_refused_with_the_fact(on: Cli, group: str):
    assert "there is no log group 'nothing'" in on("transfer", "nothing", "0", "--to", "dev-1").err
    far = on("transfer", group, "9", "--to", "dev-1")
    assert far.code == 1
    assert "UNKNOWN_SHARD" in far.err
    assert "dev-99" in on("swap", group, "0", "--from", "dev-99", "--to", "dev-1").err
    for command in (("append", "nothing", os.devnull), ("read", "nothing"), ("shards", "nothing")):
        result = on(*command)
        assert result.code == 1
        assert "no log group is named 'nothing'" in result.err
        assert "Traceback" not in result.err


# --- dev and debug -------------------------------------------------------------------------------------------


def test_status_shows_every_process_and_a_second_up_attaches(on: Cli):
    before = on("dev", "status", "--json").document
    assert [process["name"] for process in before["processes"]] == [
        "etcd", "operator", "dev-1", "dev-2", "dev-3", "dev-4",
    ]
    assert {process["state"] for process in before["processes"]} == {"Running"}
    assert before["insecure"] is True
    after = on("dev", "up", "--json")
    assert after.code == 0, after.err
    pids = {process["name"]: process["pid"] for process in before["processes"]}
    assert {process["name"]: process["pid"] for process in after.document["processes"]} == pids


def test_kill_start_pause_and_resume_a_node(on: Cli, group: str, tmp_path: Path):
    def state_of(node: str) -> str:
        processes = on("dev", "status", "--json").document["processes"]
        return next(process["state"] for process in processes if process["name"] == node)

    leader = leader_of(on, group)
    assert on("dev", "pause", leader).code == 0
    assert state_of(leader) == "Paused"
    assert on("dev", "resume", leader, "--json").document == {"resumed": [leader]}
    assert on("dev", "kill", leader).code == 0
    assert state_of(leader) == "Stopped"
    again = on("dev", "kill", leader)
    assert again.code == 1
    assert f"tidemark dev start {leader}" in again.err
    file = tmp_path / "lines"
    file.write_text("while one is dead\n")
    assert on("append", group, str(file)).code == 0
    assert on("dev", "start", leader).code == 0
    assert state_of(leader) == "Running"
    assert on("dev", "kill", "dev-77").code == 1


def test_an_act_on_many_processes_goes_through_all_of_them(on: Cli):
    assert on("dev", "pause", "dev-4", "--json").document == {"paused": ["dev-4"]}
    result = on("dev", "resume", "dev-77", "dev-4", "dev-78", "--json")
    assert result.code == 1
    assert result.document["resumed"] == ["dev-4"]
    assert [each["name"] for each in result.document["failed"]] == ["dev-77", "dev-78"]
    assert "there is no process 'dev-77'" in result.err
    assert "there is no process 'dev-78'" in result.err


def test_the_environment_of_a_shell_names_the_cluster(on: Cli, group: str, monkeypatch: pytest.MonkeyPatch):
    variables = on("dev", "env", "--json").document
    assert on("dev", "env").out.splitlines() == [f"export {name}={value}" for name, value in variables.items()]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    async def known() -> list[str]:
        async with await tidemark.connect() as client:
            return [each.name for each in client.shard_map.groups]

    assert group in tidemark.run(known())


def test_another_number_of_nodes_or_other_places_are_refused(on: Cli):
    for arguments, said in (
        (("--nodes", "3"), "with 4 nodes, not 3"),
        (("--zone", "elsewhere"), "whose nodes stand in region=eu,zone=a,rack=r1"),
    ):
        result = on("dev", "up", *arguments)
        assert result.code == 1
        assert said in result.err
        assert "tidemark dev add-node" in result.err
    assert on("dev", "up", "--nodes", "4").code == 0


def test_a_group_that_cannot_be_placed_says_so(on: Cli, tmp_path: Path):
    file = tmp_path / "group.yaml"
    file.write_text(GROUP.format(name="crowded", factor=7))
    assert on("apply", "-f", str(file)).code == 0
    try:
        for command in (("read", "crowded"), ("append", "crowded", str(file)), ("limbo", "crowded")):
            result = on(*command)
            assert result.code == 3, result.err
            assert "log group 'crowded' exists and is not served: " in result.err
            assert "tidemark get loggroup crowded" in result.err
    finally:
        assert on("delete", "loggroup", "crowded").code == 0


def test_of_several_files_all_are_applied_or_none(on: Cli, tmp_path: Path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GROUP.format(name="fine", factor=3))
    bad.write_text(GROUP.format(name="wrong", factor=0))
    result = on("apply", "-f", str(good), "-f", str(bad), "--json")
    assert result.code == 1
    assert result.document["message"].startswith(f"{bad}: ")
    assert "No file was applied" in result.document["advice"]
    assert on("get", "loggroup", "fine").code == 1
    bad.write_text(GROUP.format(name="right", factor=3))
    assert on("apply", "-f", str(good), "-f", str(bad)).code == 0
    for name in ("fine", "right"):
        assert on("delete", "loggroup", name).code == 0


def test_a_swap_of_two_nodes_with_one_shard_offers_to_spread(on: Cli, group: str):
    leader = leader_of(on, group)
    (shard, *_) = on("shards", group, "--json").document["groups"][0]["shards"]
    other = next(node for node in shard["ensemble"] if node != leader)
    result = on("swap", "--from", leader, "--to", other)
    assert result.code == 1
    assert f"--to: {other} already holds a copy" in result.err
    assert f"tidemark swap --from {leader} --spread" in result.err
    assert on("swap", "--from", leader).code == 2
    assert on("swap", "--from", leader, "--to", other, "--spread").code == 2
    assert on("swap", group, "0", "--from", leader, "--spread").code == 2
    assert on("swap", "--from", leader, "--spread").code == 0
    after = on("shards", "--json").document
    assert not [shard for each in after["groups"] for shard in each["shards"] if leader in shard["ensemble"]]


def test_debug_dump_has_every_node(on: Cli, group: str):
    document = on("debug", "dump", "--json").document
    assert set(document["nodes"]) >= {"dev-1", "dev-2", "dev-3", "dev-4"}
    assert not any("error" in dump for dump in document["nodes"].values())
    one = on("debug", "dump", "--group", group, "--shard", "0", "--json")
    assert one.code == 0, one.err


def test_the_cluster_can_be_named_by_its_admin_address_or_by_a_node(on: Cli, cli: Cli, group: str):
    status = on("dev", "status", "--json").document
    node = next(process["address"] for process in status["processes"] if process["role"] == "node")
    assert cli("shards", group, "--cluster", status["admin"], "--json").code == 0
    assert cli("get", "groups", "--cluster", status["admin"]).code == 0
    assert cli("shards", group, "--cluster", node, "--json").code == 0
    wrong = cli("get", "groups", "--cluster", node)
    assert wrong.code == 1
    assert "Admin service" in wrong.err


def test_records_with_headers_are_shown_whole():
    import tidemark

    document = record_document(tidemark.Record(b"v", b"\xff", 0, (("trace", b"1"),), 1, 2, 3))
    assert document["key_base64"] == "/w=="
    assert document["headers"] == [{"name": "trace", "value": "1"}]
    assert document["timestamp"] == "1970-01-01T00:00:00+00:00"


@pytest.mark.parametrize("word", ["etcd", "operator"])
def test_the_parts_that_decide_can_be_killed_and_started(on: Cli, group: str, tmp_path: Path, word: str):
    file = tmp_path / "lines"
    file.write_text("still served\n")
    assert on("dev", "kill", word).code == 0
    assert on("append", group, str(file)).code == 0, "running shards go on without etcd or an operator"
    assert on("dev", "start", word).code == 0
    assert on("get", "groups").code == 0
