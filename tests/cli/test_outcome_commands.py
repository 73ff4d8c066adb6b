"""append, outcome and limbo against a cluster whose fates the test decides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidemark
from cli_harness import Cli
from tidemark_cli.tally import BATCHES_LISTED_MAX, Tally, kind_of

from tests.fake_in_a_thread import FakeInAThread
from tests.ran import Ran


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    started = FakeInAThread()
    yield started
    started.stop()


@pytest.fixture
def on(fake: FakeInAThread, cli: Cli) -> Cli:
    """Run a command line on the fake cluster."""
    return lambda *arguments: cli(*arguments, "--cluster", fake.address)


@pytest.fixture
def lines(tmp_path: Path) -> str:
    file = tmp_path / "lines"
    file.write_text("one\ntwo\nthree\n")
    return str(file)


def timed_out(fake: FakeInAThread, on: Cli, lines: str) -> Ran:
    """Append three lines whose batch is told QUORUM_TIMEOUT and stays undecided."""
    shard = fake.shard()
    shard.limbo = True

    async def script() -> None:
        await fake.until(lambda: shard.undecided)
        shard.time_out()

    scripted = fake.script(script())
    result = on("append", "orders", lines, "--on-quorum-timeout", "raise", "--json")
    scripted.result(10)
    return result


# --- append ---------------------------------------------------------------------------------------------------


def test_outcomes_are_counted_by_kind(fake: FakeInAThread, on: Cli, lines: str):
    for level, kind in (("quorum", "confirmed"), ("commit", "committed"), ("local", "local")):
        result = on("append", "orders", lines, "--durability", level, "--json")
        assert result.code == 0, result.err
        assert {name: count for name, count in result.document["outcomes"].items() if count} == {kind: 3}
        assert result.document["durability"] == level.upper()
        assert result.document["failed_batches"] == []
    assert on("append", "orders", lines, "--json").document["durability"] == "GROUP_DEFAULT"
    assert "3 confirmed" in " ".join(on("append", "orders", lines).out.split())


def test_what_was_rolled_back_and_appended_anew_is_no_failure(fake: FakeInAThread, on: Cli, lines: str):
    shard = fake.shard()
    shard.limbo = True

    async def script() -> None:
        await fake.until(lambda: shard.undecided)
        shard.limbo = False
        shard.time_out()
        shard.begin_rollback(1)
        await fake.until(lambda: len(shard.sent) >= 2)
        shard.finish_rollback()

    scripted = fake.script(script())
    result = on("append", "orders", lines, "--json")
    scripted.result(10)
    assert result.code == 0, result.err
    document = result.document
    assert (document["acked"], document["outcomes"]["confirmed"]) == (3, 3)
    assert document["rolled_back_batches"] >= 1
    assert document["quorum_timeouts"] >= 1
    values = [record["value"] for record in on("read", "orders", "--json").document]
    assert values == ["one", "two", "three"]


def test_an_unknown_outcome_is_an_error_that_says_what_to_ask(fake: FakeInAThread, on: Cli, lines: str):
    result = timed_out(fake, on, lines)
    assert result.code == 3
    document = result.document
    assert document["error"] == "QUORUM_TIMEOUT"
    assert document["advice"]
    assert document["outcomes"]["quorum_timeout"] == 3 - document["outcomes"]["confirmed"]
    assert document["complete"] is False
    batch = document["failed_batches"][0]
    assert (batch["outcome"], batch["shard"], batch["first_line"]) == ("quorum_timeout", 0, 1)
    command = f"tidemark outcome orders 0 {batch['producer']} {batch['sequence']} --wait"
    assert command in result.err
    assert f"go on with --skip {document['resume_skip']}" in result.err
    assert "Traceback" not in result.err


def test_rolled_back_lines_are_an_error_that_says_so(fake: FakeInAThread, on: Cli, lines: str):
    shard = fake.shard()
    shard.limbo = True

    async def script() -> None:
        await fake.until(lambda: shard.undecided)
        at = shard.begin_rollback(1)
        assert at > 1
        shard.finish_rollback()

    scripted = fake.script(script())
    result = on("append", "orders", lines, "--on-rollback", "raise")
    scripted.result(10)
    assert result.code == 1
    assert "ROLLED_BACK" in result.err
    assert "rolled back" in " ".join(result.out.split()), "the summary counts it"
    assert "tidemark outcome" not in result.err, "there is nothing to ask: it is final"
    assert len(on("read", "orders", "--json").document) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("append", "orders", "/dev/null", "--durability", "sometimes"),
        ("append", "orders", "/dev/null", "--durability", "quorum", "--local"),
        ("append", "orders", "/dev/null", "--on-quorum-timeout", "panic"),
        ("append", "orders", "/dev/null", "--on-rollback", "shrug"),
        ("outcome", "orders", "0", "xyz", "0"),
        ("outcome", "orders", "0", "ab" * 15, "0"),
        ("outcome", "orders", "0", "ab" * 16, "-1"),
        ("outcome", "orders", "0", "00" * 16, "0"),
        ("limbo",),
        ("limbo", "orders", "--watch", "--json"),
        ("limbo", "orders", "--entries", "-1"),
        ("limbo", "orders", "--interval", "0"),
    ],
)
def test_wrong_usage_is_exit_code_2(on: Cli, arguments: tuple[str, ...]):
    result = on(*arguments)
    assert result.code == 2, result.err
    assert "Traceback" not in result.err


def test_every_ending_has_a_kind():
    names = {"group": "g", "shard": 0, "producer": b"p" * 16, "sequence": 1}
    errors = tidemark.errors
    assert kind_of(errors.QuorumTimeout("", **names)) == "quorum_timeout"
    assert kind_of(errors.OutcomeUnknown("", **names)) == "unknown"
    assert kind_of(errors.Closed("")) == "unknown"
    assert kind_of(errors.RolledBack("", **names, rolled_back_at=3)) == "rolled_back"
    assert kind_of(errors.Unavailable("")) == "not_appended"
    assert kind_of(errors.InvalidArgument("value", "")) == "refused"


def test_failed_batches_are_listed_up_to_a_bound():
    tally = Tally()
    for sequence in range(BATCHES_LISTED_MAX + 5):
        for line in (sequence * 2 + 1, sequence * 2 + 2):
            tally.failed_with(
                tidemark.errors.OutcomeUnknown("", group="g", shard=0, producer=b"p" * 16, sequence=sequence), line
            )
    assert len(tally.failed) == BATCHES_LISTED_MAX
    assert tally.failed_unlisted == 10
    first = next(iter(tally.failed.values())).document()
    assert (first["first_line"], first["last_line"], first["lines"]) == (1, 2, 2)
    assert tally.sentence() == "50 outcome unknown"
    assert Tally().sentence() == "nothing appended"


# --- outcome --------------------------------------------------------------------------------------------------


def test_the_outcome_of_a_batch_is_shown_to_people_and_programs(fake: FakeInAThread, on: Cli, lines: str):
    batch = timed_out(fake, on, lines).document["failed_batches"][0]
    name = ("outcome", "orders", "0", batch["producer"], str(batch["sequence"]))
    unknown = on(*name, "--json")
    assert unknown.code == 0
    assert unknown.document == {
        "group": "orders", "shard": 0, "producer": batch["producer"], "sequence": batch["sequence"],
        "fate": "UNKNOWN", "epoch": 1, "first": 1, "count": batch["lines"], "rolled_back_at": None,
    }

    async def decide() -> None:
        shard = fake.shard()
        await fake.until(lambda: shard.undecided[1])
        shard.begin_rollback(1)
        shard.finish_rollback()

    scripted = fake.script(decide())
    waited = on(*name, "--wait", "--json")
    scripted.result(10)
    assert waited.document["fate"] == "ROLLED_BACK"
    assert waited.document["rolled_back_at"] > 1
    shown = on(*name)
    assert "ROLLED_BACK" in shown.out
    assert "never will be" in shown.err
    missing = on("outcome", "orders", "0", "ab" * 16, "0", "--json")
    assert (missing.code, missing.document["fate"], missing.document["first"]) == (0, "NOT_FOUND", None)
    assert "no verdict" in missing.err


def test_unknown_groups_and_shards_are_the_usual_errors(on: Cli):
    for command in (("outcome", "nothing", "0", "ab" * 16, "0"), ("limbo", "nothing")):
        result = on(*command, "--json")
        assert result.code == 1
        assert result.document["error"] == "UNKNOWN_GROUP"
    for command in (("outcome", "orders", "7", "ab" * 16, "0"), ("limbo", "orders", "--shard", "7")):
        result = on(*command)
        assert result.code == 1
        assert "UNKNOWN_SHARD" in result.err


# --- limbo ----------------------------------------------------------------------------------------------------


def test_an_empty_limbo_says_so(on: Cli):
    result = on("limbo", "orders")
    assert result.code == 0, result.err
    assert "orders/0" in result.out
    assert "the limbo is empty" in result.out
    (shard,) = on("limbo", "orders", "--json").document["shards"]
    assert (shard["length"], shard["entries"], shard["rollback_pending_from"]) == (0, [], None)


def test_the_limbo_shows_who_waits_for_whom(fake: FakeInAThread, on: Cli, lines: str):
    batch = timed_out(fake, on, lines).document["failed_batches"][0]
    (shard,) = on("limbo", "orders", "--json").document["shards"]
    entry = shard["entries"][0]
    assert (entry["first"], entry["state"], entry["durability"]) == (1, "WAITING", "QUORUM")
    assert (entry["acked"], entry["missing"]) == (["n0", "n1"], ["n2"])
    assert (entry["producer"], entry["sequence"]) == (batch["producer"], batch["sequence"])
    assert (shard["quorum"], shard["members"], shard["oldest_age_ms"]) == (3, ["n0", "n1", "n2"], 1500)
    fake.shard().begin_rollback(1)
    shown = on("limbo", "orders", "--shard", "0").out
    text = " ".join(shown.split())
    assert "quorum 3 of 3" in text
    assert "oldest 1.5 s of 5.0 s" in text
    assert "rolling back from 1" in text
    assert "ROLLING_BACK n0, n1 n2" in text
    without = on("limbo", "orders", "--entries", "0").out
    assert "newer ones are not shown" in without
    assert "ROLLING_BACK" not in without


def test_a_shard_without_a_leader_does_not_hide_the_others(cli: Cli):
    fake = FakeInAThread(shards=2)
    try:
        fake.shard(1).leader = ""

        async def push() -> None:
            fake.cluster.push()

        fake.call(push())
        result = cli("limbo", "orders", "--timeout", "0.3", "--cluster", fake.address, "--json")
        assert result.code == 3
        first, second = result.document["shards"]
        assert first["length"] == 0
        assert second["error"] == "UNAVAILABLE"
        assert "shard 1 of orders" in result.err
        shown = cli("limbo", "orders", "--timeout", "0.3", "--cluster", fake.address)
        assert shown.code == 3
        assert "the limbo is empty" in shown.out
    finally:
        fake.stop()


def test_a_watch_draws_again_and_ends_quietly_on_ctrl_c(fake: FakeInAThread):
    command = [
        sys.executable, "-m", "tidemark_cli", "limbo", "orders", "--watch", "--interval", "0.1",
        "--cluster", fake.address,
    ]
    environment = os.environ | {"COLUMNS": "200"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    pictures = 0
    deadline = time.monotonic() + 20
    while pictures < 3 and time.monotonic() < deadline:
        pictures += "the limbo is empty" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert pictures == 3
    assert (process.returncode, err) == (130, "")


def test_the_documents_are_plain_json(on: Cli):
    assert json.loads(on("limbo", "orders", "--json").out)["group"] == "orders"
