"""put, get, delete, scan and pin of documents, on the fake cluster."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_harness import Cli
from tidemark_core.base.refusals import Reason, Refused

from tests.fake_in_a_thread import FakeDocuments, FakeInAThread
from tests.waiting import wait_until


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


def test_a_document_is_put_got_and_deleted(on_fake: Cli):
    made = on_fake("put", "settings", "theme", "dark", "--expected", "0", "--json")
    assert made.code == 0, made.err
    assert (made.document["key"], made.document["existed"], made.document["replaced"]) == ("theme", False, None)
    assert on_fake("get", "settings", "theme").out == "dark\n"
    seqno = made.document["seqno"]
    got = on_fake("get", "settings", "theme", "other", "--json")
    assert got.code == 1
    assert got.document["documents"] == [
        {"key": "theme", "value": "dark", "seqno": seqno, "shard": made.document["shard"], "expires_at": None}]
    assert got.document["missing"] == [{"key": "other"}]
    assert "no document 'other'" in got.err
    assert on_fake("get", "settings", "theme", "--level", "follower", "--min-seqno", str(seqno)).out == "dark\n"
    gone = on_fake("delete", "settings", "theme", "--expected", str(seqno), "--json")
    assert (gone.code, gone.document["existed"], gone.document["replaced"]) == (0, True, seqno)
    assert on_fake("get", "settings", "theme").code == 1
    assert "no such document" in on_fake("delete", "settings", "theme").err


def test_u49_a_condition_that_does_not_hold_is_an_error_with_the_seqno_found(on_fake: Cli):
    first = on_fake("put", "settings", "k", "v", "--json").document["seqno"]
    refused = on_fake("put", "settings", "k", "w", "--expected", "0", "--json")
    assert refused.code == 1
    assert refused.document["error"] == "CONDITION_FAILED"
    assert f"has seqno {first}, expected no document" in refused.document["message"]
    refused = on_fake("delete", "settings", "k", "--expected", "999")
    assert (refused.code, "expected seqno 999" in refused.err) == (1, True)
    assert on_fake("get", "settings", "k").out == "v\n"


def test_values_may_be_any_bytes(on_fake: Cli, fake: FakeInAThread):
    raw = base64.b64encode(b"\xff\x00\n").decode()
    assert on_fake("put", "settings", raw, raw, "--base64").code == 0
    found = on_fake("get", "settings", raw, "--base64", "--json").document["documents"][0]
    assert (found["key_base64"], found["value_base64"]) == (raw, raw)
    assert on_fake("get", "settings", "no base64!", "--base64").code == 2
    put = [sys.executable, "-m", "tidemark_cli", "put", "settings", "stdin", "-", "--cluster", fake.address]
    assert subprocess.run(put, input=b"a\nb\n", capture_output=True, check=False, timeout=60).returncode == 0
    assert on_fake("get", "settings", "stdin").out == "a\nb\n\n"


def test_lines_are_put_with_their_conditions(on_fake: Cli, tmp_path: Path):
    lines = tmp_path / "lines.ndjson"
    lines.write_text("\n".join((
        '{"key": "a", "value": "text"}', '{"key": "b", "value": {"x": [1, 2]}, "ttl_s": 60}', "",
        '{"key_base64": "/w==", "value_base64": "AA==", "expected": 0}',
        '{"key": "a", "value": "again", "expected": 0}',
        '{"key": "c", "value": "1"}', '{"key": "c", "delete": true}',
    )))
    done = on_fake("put", "settings", "--file", str(lines), "--json")
    assert done.code == 1, "one condition did not hold"
    assert (done.document["acked"], done.document["empty_lines"], done.document["resume_skip"]) == (5, 1, 7)
    assert (done.document["complete"], done.document["error"]) == (True, "CONDITION_FAILED")
    (failed,) = done.document["conditions_failed"]
    assert (failed["line"], failed["key"], failed["expected"], failed["found"] > 0) == (5, "a", 0, True)
    assert on_fake("get", "settings", "a", "b").out == 'text\n{"x":[1,2]}\n'
    assert on_fake("get", "settings", "b", "--json").document["documents"][0]["expires_at"] is not None
    assert on_fake("get", "settings", "c").code == 1


def test_a_line_that_is_no_document_stops_and_says_how_to_go_on(on_fake: Cli, tmp_path: Path):
    lines = tmp_path / "lines.ndjson"
    for bad, why in (
        ("nonsense", "not JSON"), ("[1]", "no JSON object"), ('{"value": "v"}', "no key"),
        ('{"key": null, "value": "v"}', "key is null"), ('{"key": "k"}', "no value"),
        ('{"key": "k", "value": "v", "expect": 1}', "'expect' is unknown"),
        ('{"key": "k", "value": "v", "expected": "1"}', "expected is '1'"),
        ('{"key": "", "value": "v"}', "key: has 0 bytes"), ('{"key": "k", "value": "v", "ttl_s": -1}', "ttl_s: is -1"),
        ('{"key_base64": "?", "value": "v"}', "key_base64 is not base64"),
    ):
        lines.write_text('{"key": "good", "value": "v"}\n' + bad + "\n")
        stopped = on_fake("put", "settings", "-f", str(lines), "--json")
        assert stopped.code in (1, 2), stopped.err
        assert stopped.document["message"].startswith("line 2: "), stopped.document
        assert why in stopped.document["message"]
        assert (stopped.document["complete"], stopped.document["resume_skip"]) == (False, 1)
        assert "go on with --skip 1" in stopped.err


def test_lines_with_a_key_field_are_values(on_fake: Cli, tmp_path: Path):
    lines = tmp_path / "lines.ndjson"
    lines.write_text("".join(json.dumps({"id": f"{number:03d}", "n": number}) + "\n" for number in range(200)))
    done = on_fake("put", "settings", "--file", str(lines), "--key-field", "id", "--skip", "100", "--json")
    assert (done.code, done.document["acked"], done.document["outcomes"]["confirmed"]) == (0, 100, 100)
    assert on_fake("get", "settings", "150").out == '{"id": "150", "n": 150}\n'
    assert on_fake("get", "settings", "050").code == 1
    shown = on_fake("put", "settings", "--file", str(lines), "--key-field", "id")
    assert (shown.code, "200 confirmed" in shown.out) == (0, True)


def test_scan_writes_documents_by_range(on_fake: Cli):
    for key in ("a1", "a2", "b1", "b2", "c1"):
        assert on_fake("put", "settings", key, "v" + key).code == 0
    scan = ("scan", "settings", "--ordered")
    assert on_fake(*scan).out == "".join(f"{key}\tv{key}\n" for key in ("a1", "a2", "b1", "b2", "c1"))
    assert on_fake(*scan, "--prefix", "b", "--keys-only").out == "b1\nb2\n"
    assert on_fake(*scan, "--from", "a2", "--until", "b2", "--keys-only").out == "a2\nb1\n"
    assert on_fake(*scan, "--limit", "2", "--keys-only").out == "a1\na2\n"
    document = on_fake(*scan, "--prefix", "c", "--json").document
    assert [(each["key"], each["value"]) for each in document] == [("c1", "vc1")]
    assert on_fake(*scan, "--prefix", "x", "--json").document == []
    lines = on_fake("scan", "settings", "--jsonl", "--keys-only").out.splitlines()
    assert sorted(json.loads(line)["key"] for line in lines) == ["a1", "a2", "b1", "b2", "c1"]
    assert "value" not in json.loads(lines[0])


@pytest.fixture
def paged(fake: FakeInAThread, on_fake: Cli, tmp_path: Path) -> FakeDocuments:
    """Documents in both shards; the next scan of shard 0 breaks behind its first page, which has one."""
    lines = tmp_path / "many.ndjson"
    lines.write_text("".join(f'{{"key": "k{number}", "value": "v"}}\n' for number in range(20)))
    assert on_fake("put", "settings", "--file", str(lines)).code == 0
    documents = fake.cluster.groups["settings"][0].documents
    assert documents is not None
    documents.page_max = 1
    documents.breaks.append(1)
    return documents


def test_a_scan_that_fails_midway_is_one_document(on_fake: Cli, paged: FakeDocuments):
    paged.on_break = lambda: paged.refusals.append(Refused(Reason.CORRUPT, "the row cannot be read"))
    result = on_fake("scan", "settings", "--shard", "0", "--json")
    assert result.code == 1, result.err
    first, last = result.document
    assert (first["shard"], first["value"]) == (0, "v")
    assert last["error"] == "CORRUPT" and last["message"]
    assert "error:" in result.err


def test_a_scan_that_is_interrupted_is_one_document(fake: FakeInAThread, on_fake: Cli, paged: FakeDocuments):
    def interrupt() -> None:
        fake.cluster.nodes["n0"].paused.clear()   # the call behind the break is not answered
        os.kill(os.getpid(), signal.SIGINT)

    paged.on_break = interrupt
    result = on_fake("scan", "settings", "--shard", "0", "--json")
    assert result.code == 130
    assert [each["shard"] for each in result.document] in ([], [0])
    assert f"interrupted after {len(result.document)} documents" in result.err


def test_u70_a_pin_is_created_read_listed_and_released(on_fake: Cli):
    assert on_fake("put", "settings", "k", "old").code == 0
    pin = on_fake("pin", "create", "settings", "nightly", "--ttl", "30m", "--json")
    assert (pin.code, pin.document["pin"], len(pin.document["shards"])) == (0, "nightly", 2)
    assert sum(shard["documents"] for shard in pin.document["shards"]) == 1
    assert on_fake("put", "settings", "k", "new").code == 0
    assert on_fake("get", "settings", "k", "--at", "nightly").out == "old\n"
    assert on_fake("scan", "settings", "--at", "nightly").out == "k\told\n"
    listed = on_fake("pin", "list", "settings", "--json").document["pins"]
    assert [(each["pin"], each["shard"]) for each in listed] == [("nightly", 0), ("nightly", 1)]
    assert all(0 < each["expires_in_ms"] <= 1_800_000 for each in listed)
    assert "nightly" in on_fake("pin", "list", "settings").out
    assert on_fake("pin", "release", "settings", "nightly").code == 0
    for command in (("pin", "release", "settings", "nightly"), ("get", "settings", "k", "--at", "nightly"),
                    ("scan", "settings", "--at", "nightly")):
        over = on_fake(*command, "--json")
        assert (over.code, over.document["error"]) == (1, "NOT_PINNED"), command


def test_groups_of_the_other_kind_are_refused(on_fake: Cli):
    for command in (("put", "orders", "k", "v"), ("get", "orders", "k"), ("scan", "orders"), ("delete", "orders", "k"),
                    ("pin", "list", "orders"), ("append", "settings", "/dev/null"), ("read", "settings")):
        refused = on_fake(*command, "--json")
        assert (refused.code, refused.document["error"]) == (1, "WRONG_KIND"), command
    assert on_fake("get", "nowhere", "k", "--json").document["error"] == "UNKNOWN_GROUP"


@pytest.mark.parametrize("arguments", [
    ("put",), ("put", "g"), ("put", "g", "k"), ("put", "g", "k", "v", "--skip", "1"),
    ("put", "g", "k", "v", "--key-field", "x"), ("put", "g", "k", "v", "--file", "x"),
    ("put", "g", "k", "v", "--expected", "-1"), ("put", "g", "k", "v", "--ttl", "soon"),
    ("put", "g", "k", "v", "--durability", "local"), ("get", "settings"), ("get", "loggroup", "a", "b"),
    ("get", "loggroup", "--level", "leader"), ("delete", "loggroup", "a", "--expected", "1"),
    ("get", "g", "k", "--at", "p", "--level", "leader"), ("get", "g", "k", "--level", "soon"),
    ("scan", "g", "--prefix", "a", "--from", "b"), ("scan", "g", "--json", "--jsonl"), ("scan", "g", "--limit", "0"),
    ("scan", "g", "--at", "p", "--level", "leader"), ("pin",), ("pin", "create", "g"),
    ("pin", "create", "g", "p", "--ttl", "x"),
])
def test_wrong_usage_is_exit_code_2(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments):
    monkeypatch.chdir(tmp_path)
    result = cli(*arguments)
    assert result.code == 2, result.err
    assert "Traceback" not in result.err


def test_a_group_with_the_name_of_a_kind_is_written_in_full(fake: FakeInAThread, on_fake: Cli):
    async def add() -> None:
        fake.cluster.add_documents("shard", 1)

    fake.call(add())
    wait_until(lambda: on_fake("put", "shard", "k", "v").code == 0, "the group is there")
    assert on_fake("get", "documents/shard", "k").out == "v\n"
    assert on_fake("delete", "documents/shard", "k").code == 0
    hinted = on_fake("delete", "shard", "k", "--expected", "1")
    assert (hinted.code, "documents/shard" in hinted.err) == (2, True)
