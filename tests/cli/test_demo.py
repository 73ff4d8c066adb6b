"""The demo: its verdict sees what is wrong, and the whole of it runs."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest
import typer
from rich.console import Console
from tidemark import QUORUM, Appended, Record
from tidemark_cli.demo import command, keys, majority, packages, reading, spark, view
from tidemark_cli.demo.holdings import Verdict
from tidemark_cli.demo.ledger import Ledger
from tidemark_cli.demo.outcomes import Findings
from tidemark_cli.demo.packages import Change
from tidemark_cli.demo.reading import Comparison, Delivery
from tidemark_cli.demo.scenario import Failover, Outcome
from tidemark_cli.demo.screen import Screen
from tidemark_cli.failures import FAILED, CommandFailed


def promised(count: int = 10) -> tuple[Ledger, list[Record]]:
    """Ten appends of two keys on two shards, and the records as they should be read."""
    ledger, records = Ledger(), []
    for number in range(count):
        key, value, shard, offset = b"k%d" % (number % 2), b"v%d" % number, number % 2, number // 2
        ledger.note(number, Change(key, value), Appended(shard, offset, 1, QUORUM))
        records.append(Record(value, key, 0, None, shard, offset, 1))
    return ledger, records


def test_everything_kept_is_a_good_verdict():
    ledger, records = promised()
    verdict = ledger.judge(records)
    assert verdict.kept
    assert (verdict.acked, verdict.read) == (10, 10)


def test_a_missing_or_altered_record_is_lost():
    ledger, records = promised()
    records[3] = records[3]._replace(value=b"other")
    verdict = ledger.judge(records[:-1])
    assert (verdict.lost, verdict.duplicated, verdict.reordered) == (2, 0, 0)
    assert not verdict.kept
    assert len(verdict.examples) == 2


def test_a_record_nobody_was_promised_or_delivered_twice_is_duplicated():
    ledger, records = promised()
    extra = records[-1]._replace(offset=99)
    verdict = ledger.judge([*records, extra, records[0]])
    assert (verdict.lost, verdict.duplicated) == (0, 2)


def test_two_appends_answered_with_one_place_are_a_loss():
    ledger, records = promised()
    ledger.note(10, Change(b"k0", b"v0"), Appended(0, 0, 1, QUORUM))
    assert ledger.judge(records).lost == 1


def test_an_earlier_append_of_the_key_behind_a_later_one_is_reordered():
    ledger = Ledger()
    ledger.note(1, Change(b"k", b"b"), Appended(0, 0, 1, QUORUM))
    ledger.note(0, Change(b"k", b"a"), Appended(0, 1, 1, QUORUM))
    records = [Record(b"b", b"k", 0, None, 0, 0, 1), Record(b"a", b"k", 0, None, 0, 1, 1)]
    assert ledger.judge(records).reordered == 1


def test_failover_counts_from_the_kill_to_a_new_leaders_answer():
    failover = Failover()
    failover.begin({0: 3, 2: 5})
    failover.on_ack(Appended(1, 10, 9, QUORUM))
    failover.on_ack(Appended(0, 10, 3, QUORUM))
    assert failover.milliseconds == -1, "other shards and the dead leader's own entries do not count"
    failover.on_ack(Appended(2, 10, 6, QUORUM))
    assert failover.milliseconds >= 0
    assert failover.shard == 2
    assert not failover.done.is_set()
    failover.on_ack(Appended(0, 11, 4, QUORUM))
    assert failover.done.is_set()


@pytest.mark.parametrize(
    ("batches", "wrong"),
    [
        ([b"abc", b"ab", b"ca", b"bcabc"], 0),   # over the seams of the rounds
        ([b"abcabc", b"abc"], 3),                # missing
        ([b"abcabcabcabc", b"a"], 1),            # too many
        ([b"abcab", b"ab", b"cabca"], 7),        # one twice and one missing: everything between is misplaced
        ([b"abcabc", b"xbcabc"], 1),
    ],
)
def test_what_was_read_is_compared_record_by_record(batches: list[bytes], wrong: int):
    comparison = Comparison([b"a", b"b", b"c"], 4)
    for batch in batches:
        for start in range(0, len(batch), 3):
            comparison.take(pa.array([bytes([value]) for value in batch[start:start + 3]], pa.binary()))
    assert comparison.wrong == wrong


def test_the_bundled_data_is_found_and_whole():
    changes = packages.load(packages.find(None))
    assert len(changes) == 11_432
    assert all(json.loads(change.value)["key"].encode() == change.key for change in changes)


def test_wrong_data_is_named(tmp_path: Path):
    with pytest.raises(CommandFailed, match="there is no file"):
        packages.find(tmp_path / "nothing")
    file = tmp_path / "data.ndjson.gz"
    with gzip.open(file, "wt") as out:
        out.write('{"key":"a"}\n{"name":"b"}\n')
    with pytest.raises(CommandFailed, match="line 2"):
        packages.load(file)
    file.write_bytes(b"not gzip")
    with pytest.raises(CommandFailed, match="cannot read"):
        packages.load(file)


DOCUMENTS = 4_647
"""Packages in the bundled data."""


def demo_processes() -> set[int]:
    """Process ids of everything that runs out of a demo's temporary folder."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"tidemark-demo-" in words:
                found.add(int(entry.name))
    return found


def interrupted(process: subprocess.Popen[str], errors: IO[str]) -> str:
    """Interrupt a demo and return its standard error: a file, as a pipe without a reader would fill and stop it."""
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    errors.seek(0)
    return errors.read()


@pytest.mark.servers
@pytest.mark.timeout(300)
def test_the_demo_keeps_every_promise_and_leaves_nothing_behind(tmp_path: Path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tidemark_cli", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["acked"] == document["read"] == 11_432
    assert document["lost"] == document["duplicated"] == document["reordered"] == 0
    assert document["elections"] > 4
    assert document["swaps"] >= 1
    assert 0 < document["failover_ms"] < 20_000
    assert document["seconds"] < 180
    assert (document["spark_sections"], document["spark_mismatches"]) == (3, 0)
    assert (document["sink_rows"], document["sink_mismatches"]) == (11_432, 0)
    assert "3 sections" in done.stdout and "installed MiB" in done.stdout
    assert document["read_bytes"] >= reading.BYTES_MIN
    assert document["read_wrong"] == 0
    assert 1 <= document["received_over_delivered"] < 1.05
    assert document["rewinds"] >= 1
    assert document["killed_reading"] in document["shares"]
    assert sum(document["shares"].values()) == pytest.approx(1, abs=0.01)
    assert f"SIGKILL to {document['killed_reading']}" in done.stdout
    assert (document["view_mismatches"], document["view_digest"]) == (0, "equal")
    assert document["view_documents"] == DOCUMENTS
    assert f"SIGKILL to {document['killed_putting']}, which leads shard 0" in done.stdout
    assert document["contradictions"] == 0
    assert list(document.items())[-2:] == [("keyspace_diverged", 0), ("resurrected", 0)]
    assert (document["keyspace_keys"], document["keyspace_deleted"]) == (keys.KEYS, keys.KEYS // 3)
    assert document["keyspace_sloppy"] and document["keyspace_hints"]
    assert document["told_confirmed"] == majority.BEFORE + majority.LATE
    assert document["told_local"] == majority.LOCALS
    assert document["told_unknown"] == document["then_rolled_back"] == majority.WAITING + majority.BEHIND
    assert document["told_rolled_back"] == document["then_confirmed"] == 0
    assert 1 < document["seconds_limbo"] < 15
    assert "their writers were told that the outcome is unknown" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("contradictions", "wrong", "mismatches", "digest", "counted", "owners"),
    [
        ((), 0, 0, "equal", 0, (0, 0)), (("something is read that was rolled back",), 0, 0, "equal", 0, (0, 0)),
        ((), 1, 0, "equal", 0, (0, 0)), ((), 0, 1, "equal", 0, (0, 0)), ((), 0, 0, "different", 0, (0, 0)),
        ((), 0, 0, "moving", 0, (0, 0)), ((), 0, 0, "equal", 2, (0, 0)), ((), 0, 0, "equal", None, (0, 0)),
        ((), 0, 0, "equal", 0, (1, 0)), ((), 0, 0, "equal", 0, (0, 1)),
    ],
)
def test_a_contradiction_or_a_wrong_record_view_count_or_owner_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    contradictions: tuple[str, ...], wrong: int, mismatches: int, digest: str, counted: int | None,
    owners: tuple[int, int],
):
    found = Findings(1, 2, 3, 4, 1, 2, 8, contradictions)
    delivery = Delivery(300 << 20, wrong, 1.0042, 2, {"demo-1": 0.25, "demo-2": 0.75}, "demo-2", 1.5)
    viewed = view.Findings(10, mismatches, digest, "demo-3")
    outcome = Outcome(
        Ledger().judge([]), spark.Findings(3, counted, 1.0), delivery, viewed,
        keys.Findings(9, 3, 2, 4, ("demo-1", "demo-2"), Verdict(*owners, ()), 2.5), found, 1.0, 5, 1, 100, "demo-1",
        "demo-2", "demo-5", "an etcd")

    async def run(*_: object) -> Outcome:
        return outcome

    monkeypatch.setattr(command, "run", run)
    if contradictions or wrong or mismatches or digest != "equal" or counted or any(owners):
        with pytest.raises(typer.Exit) as ended:
            command.demo(keep=tmp_path, as_json=True)
        assert ended.value.exit_code == FAILED
    else:
        command.demo(keep=tmp_path, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["contradictions"] == len(contradictions)
    assert (document["keyspace_diverged"], document["resurrected"]) == owners
    assert document["spark_mismatches"] == counted
    assert [document[f"view_{name}"] for name in ("documents", "mismatches", "digest")] == [10, mismatches, digest]
    assert (document["read_wrong"], document["received_over_delivered"], document["rewinds"]) == (wrong, 1.0042, 2)
    assert [document[name] for name in ("told_confirmed", "told_local", "told_unknown", "told_rolled_back")] == [
        1, 2, 3, 4,
    ]


@pytest.mark.servers
@pytest.mark.parametrize("after_s", [0.1, 1.5, 5.0])
def test_an_interrupted_demo_stops_every_process(tmp_path: Path, after_s: float):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidemark_cli", "demo"], stdout=subprocess.PIPE, stderr=errors, text=True,
            env=environment)
        assert process.stdout is not None
        assert "starting 5 nodes" in process.stdout.readline()
        time.sleep(after_s)
        err = interrupted(process, errors)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    mine = {pid for pid in demo_processes() if str(tmp_path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()}
    assert mine == set()


@pytest.mark.servers
@pytest.mark.timeout(300)
@pytest.mark.parametrize("told", ["starting Spark", "LOCAL appends answered"])
def test_a_demo_interrupted_while_spark_runs_or_nodes_are_paused_stops_every_process(tmp_path: Path, told: str):
    changes = packages.load(packages.find(None))[:1_500]
    data = tmp_path / "changes.ndjson"
    data.write_bytes(b"".join(change.value + b"\n" for change in changes))
    folder = tmp_path / "demos"
    folder.mkdir()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidemark_cli", "demo", "--data", str(data)], stdout=subprocess.PIPE,
            stderr=errors, text=True, env={**os.environ, "TMPDIR": str(folder)})
        assert process.stdout is not None
        assert any(told in line for line in process.stdout)
        err = interrupted(process, errors)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert list(folder.iterdir()) == []
    assert not [pid for pid in demo_processes() if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_the_table_at_the_end_fits_eighty_columns():
    """Every value whole, a mapping as words."""
    text = io.StringIO()
    etcd = "etcd 3.6.4 at /a/path/of/many/folders/that/is/longer/than/a/terminal/is/wide/and/then/some/etcd"
    rows = {"acked": 12345, "shares": {"dev-1": 0.25, "dev-2": 0.75}, "rewinds": {}, "etcd": etcd}
    Screen(Console(file=text, width=80)).summary(rows, good=True)
    lines = text.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "dev-1 0.25, dev-2 0.75" in text.getvalue()
    assert "{" not in text.getvalue() and "…" not in text.getvalue()
    assert etcd.partition(" at ")[2] in "".join(text.getvalue().split())


@pytest.mark.parametrize(("terminal", "as_json", "written"), [(True, False, False), (True, True, True),
                                                              (False, False, True)])
def test_the_line_of_json_is_written_in_a_pipe_and_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, terminal: bool, as_json: bool, written: bool
):
    text = io.StringIO()
    monkeypatch.setattr(text, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", text)
    command.write_line({"acked": 1}, as_json=as_json)
    assert text.getvalue() == ('{"acked": 1}\n' if written else "")
