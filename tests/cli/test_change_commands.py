"""changes, barrier and failover-log, on the fake cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_harness import Cli
from tidemark_core.base.ids import key_hash
from tidemark_core.upr.messages import EndReason, StreamEnd

from tests.fake_in_a_thread import FakeInAThread
from tests.waiting import PATIENCE_S


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    """Three nodes, the log `orders` and the documents `settings` of two shards."""
    started = FakeInAThread(shards=1, nodes=3)

    async def add() -> None:
        started.cluster.add_documents("settings", 2)

    started.call(add())
    yield started
    started.stop()


@pytest.fixture
def on_fake(fake: FakeInAThread, cli: Cli) -> Cli:
    return lambda *arguments: cli(*arguments, "--cluster", fake.address)


def test_changes_shows_the_documents_and_a_position_to_go_on_from(on_fake: Cli):
    for key, value in (("a1", "one"), ("a2", "two"), ("b1", "three")):
        assert on_fake("put", "settings", key, value).code == 0
    assert on_fake("delete", "settings", "a2").code == 0
    shown = on_fake("changes", "settings")
    assert shown.code == 0, shown.err
    lines = [line.split("\t")[1:] for line in shown.out.splitlines()]
    assert sorted(lines) == [["DELETE", "a2"], ["PUT", "a1", "one"], ["PUT", "b1", "three"]]
    assert "position tmc1." in shown.err

    found = [json.loads(line) for line in on_fake("changes", "settings", "--json").out.splitlines()]
    rows = [each for each in found if "op" in each]
    assert {(row["key"], row["op"]) for row in rows} == {("a1", "PUT"), ("a2", "DELETE"), ("b1", "PUT")}
    assert all("value" not in row for row in rows if row["op"] == "DELETE")
    position = found[-1]["position"]

    assert on_fake("put", "settings", "c1", "four").code == 0
    later = [json.loads(line) for line in on_fake("changes", "settings", "--from", position, "--json").out.splitlines()]
    assert [row["key"] for row in later if "op" in row] == ["c1"]
    assert on_fake("changes", "settings", "--from", position).out.split("\t")[1:] == ["PUT", "c1", "four\n"]
    assert on_fake("changes", "settings", "--prefix", "b", "--keys-only").out.split("\t")[1:] == ["PUT", "b1", "\n"]
    limited = on_fake("changes", "settings", "-f", "--limit", "2")
    assert (limited.code, len(limited.out.splitlines())) == (0, 2)


@pytest.mark.parametrize("by", ["consumer", "position"])
def test_a_limit_ends_where_the_next_run_goes_on(on_fake: Cli, by: str):
    keys = [f"k{number}" for number in range(30) if key_hash(b"k%d" % number) >> 31 == 0][:4]   # of one shard
    for key in keys:
        assert on_fake("put", "settings", key, "v").code == 0
    shown: list[list[str]] = []
    place = ("--consumer", "c") if by == "consumer" else ("--from", "beginning")
    for _ in range(5):
        told = on_fake("changes", "settings", *place, "--limit", "2" if len(shown) == 1 else "1", "--json")
        lines = [json.loads(line) for line in told.out.splitlines()]
        shown.append([line["key"] for line in lines if "op" in line])
        if by == "position":
            place = ("--from", lines[-1]["position"])
    assert shown == [keys[:1], keys[1:3], keys[3:], [], []]
    assert "position tmc1." in on_fake("changes", "settings", "--limit", "1").err


def following(fake: FakeInAThread, *options: str) -> subprocess.Popen[str]:
    """Start `changes --follow` in a process of its own."""
    command = [sys.executable, "-m", "tidemark_cli", "changes", "settings", "-f", "--cluster", fake.address, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("options", "sent", "code"), [
    ((), signal.SIGINT, 130), (("--json",), signal.SIGINT, 130), (("--json",), signal.SIGTERM, 143)])
def test_an_interrupted_follow_ends_with_its_position(
    fake: FakeInAThread, on_fake: Cli, options: tuple[str, ...], sent: signal.Signals, code: int
):
    assert on_fake("put", "settings", "a", "1").code == 0
    process = following(fake, *options)
    assert process.stdout is not None
    try:
        while '"a"' not in (line := process.stdout.readline()) and "PUT\ta\t1" not in line:
            assert line, "it goes on"
        process.send_signal(sent)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
    assert process.returncode == code, err
    assert "error" not in out + err
    if options:
        lines = [json.loads(line) for line in out.splitlines()]
        position = lines[-1]["position"]
    else:
        assert out == ""
        position = err.split("position ")[1].split()[0]
    assert on_fake("put", "settings", "b", "2").code == 0
    assert on_fake("changes", "settings", "--from", position).out.split("\t")[1:] == ["PUT", "b", "2\n"]


def test_changes_that_fail_end_with_one_line(fake: FakeInAThread, on_fake: Cli):
    assert on_fake("put", "settings", "a", "1").code == 0
    process = following(fake, "--json")
    assert process.stdout is not None
    try:
        while json.loads(process.stdout.readline()).get("key") != "a":
            pass

        async def end() -> None:
            for node in fake.cluster.nodes.values():
                node.changes.ends += [StreamEnd(EndReason.LOST_PRIVILEGES, None, "no reader")] * 2
            for node in fake.cluster.nodes.values():   # the streams begin again
                await node.kill()
                await node.start(int(node.address.rpartition(":")[2]))

        fake.call(end())
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
    *_, last = [json.loads(line) for line in out.splitlines()]
    assert (process.returncode, last["error"]) == (1, "PERMISSION_DENIED"), err
    assert "error:" in err


def test_changes_under_a_name_goes_on(on_fake: Cli):
    assert on_fake("put", "settings", "a", "1").code == 0
    assert "PUT\ta\t1" in on_fake("changes", "settings", "--consumer", "cli").out
    assert on_fake("put", "settings", "b", "2").code == 0
    second = on_fake("changes", "settings", "--consumer", "cli").out
    assert "PUT\tb\t2" in second and "PUT\ta" not in second


def test_a_position_that_is_none_and_a_group_that_is_a_log(on_fake: Cli):
    wrong = on_fake("changes", "settings", "--from", "tmc1.AAAA", "--json")
    assert (wrong.code, wrong.document["error"]) == (2, "POSITION_REFUSED")
    assert on_fake("changes", "nowhere", "--json").document["error"] == "UNKNOWN_GROUP"


def test_barrier_names_every_shard_and_a_position(on_fake: Cli):
    seqno = on_fake("put", "settings", "a", "1", "--json").document["seqno"]
    vector = on_fake("barrier", "settings", "--json").document
    assert sorted(each["shard"] for each in vector["shards"]) == [0, 1]
    assert max(each["seqno"] for each in vector["shards"]) >= seqno
    assert on_fake("changes", "settings", "--from", vector["position"]).out == ""
    assert vector["position"].startswith("tmc1.")
    assert "SEQNO" in on_fake("barrier", "settings").out


def test_failover_log_lists_the_epochs_of_each_shard(on_fake: Cli):
    shown = on_fake("failover-log", "settings", "--json")
    assert (shown.code, shown.document["group"]) == (0, "settings"), shown.err
    assert all(each["epoch"] >= 1 and len(each["history"]) == 32 for each in shown.document["entries"])
    assert "EPOCH" in on_fake("failover-log", "settings").out


@pytest.mark.parametrize("arguments", [
    ("changes",), ("changes", "g", "--from", "17"), ("changes", "g", "--from", "soon"),
    ("changes", "g", "--limit", "0"),
    ("barrier",), ("failover-log",),
])
def test_wrong_usage_is_exit_code_2(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments):
    monkeypatch.chdir(tmp_path)
    result = cli(*arguments)
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
