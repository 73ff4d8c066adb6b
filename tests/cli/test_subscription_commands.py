"""read and tail under a name, subscriptions list and delete: what is written out is committed, and no more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidemark.sync
from cli_harness import Cli
from tidemark_cli.subscriptions import seconds_of, span

from tests.fake_in_a_thread import FakeInAThread

DAY_MS = 86_400_000


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    """Three members of two shards, fifty records on each: offsets 1 to 50."""
    started = FakeInAThread(shards=2, nodes=3)
    with tidemark.sync.connect(started.address) as client, client.appender("orders", batch_records=10) as appender:
        for start in range(0, 100, 10):
            appender.append_batch([b"%d" % number for number in range(start, start + 10)])
    yield started
    started.stop()


@pytest.fixture
def on_fake(fake: FakeInAThread, cli: Cli) -> Cli:
    return lambda *arguments: cli(*arguments, "--cluster", fake.address)


def offsets(text: str) -> list[int]:
    return [json.loads(line)["offset"] for line in text.splitlines()]


def test_read_goes_on_where_it_was(fake: FakeInAThread, on_fake: Cli):
    read = ("read", "orders", "--shard", "0", "--subscription", "one", "--jsonl")
    assert list(range(1, 18)) == offsets(on_fake(*read, "--limit", "17").out)
    assert {"one": (18, 7 * DAY_MS)} == fake.shard().positions
    assert list(range(18, 51)) == offsets(on_fake(*read, "--lease", "2d").out)
    assert {"one": (51, 2 * DAY_MS)} == fake.shard().positions
    assert "" == on_fake(*read).out


def test_tail_goes_on_where_it_was_and_begins_with_the_last(fake: FakeInAThread, on_fake: Cli):
    tail = ("tail", "orders", "--shard", "0", "--subscription", "one", "--jsonl")
    assert [48, 49, 50] == offsets(on_fake(*tail, "-n", "3").out)
    assert 51 == fake.shard().positions["one"][0]
    assert [] == offsets(on_fake(*tail, "-n", "3").out)
    fake.shard().positions["one"] = 40, DAY_MS
    assert list(range(40, 51)) == offsets(on_fake(*tail, "-n", "3").out), "behind where it stands, not the last three"


def test_whoever_is_interrupted_has_committed_what_was_written(fake: FakeInAThread):
    command = [
        sys.executable, "-m", "tidemark_cli", "tail", "orders", "-f", "-n", "5", "--shard", "0",
        "--subscription", "one", "--cluster", fake.address,
    ]
    tailing = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert tailing.stdout is not None
    lines = [tailing.stdout.readline() for _ in range(5)]
    tailing.send_signal(signal.SIGINT)
    tailing.communicate(timeout=20)
    assert (5, 130) == (len([line for line in lines if line]), tailing.returncode)
    assert 51 == fake.shard().positions["one"][0]


def test_what_nobody_took_from_the_pipe_is_not_committed(fake: FakeInAThread):
    """As `tidemark read | head` does it."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [
        sys.executable, "-m", "tidemark_cli", "read", "orders", "--shard", "0", "--subscription", "one",
        "--cluster", fake.address,
    ]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.DEVNULL, timeout=30, check=False)
    os.close(writing)
    assert 0 == ended.returncode
    assert {} == fake.shard().positions


def test_subscriptions_are_listed(fake: FakeInAThread, on_fake: Cli):
    assert "nobody reads orders under a name" in on_fake("subscriptions", "list", "orders").out
    fake.shard(0).positions = {"late": (11, DAY_MS), "done": (51, 60_000)}
    fake.shard(1).positions = {"late": (51, DAY_MS)}
    seen = on_fake("subscriptions", "list", "orders").out.splitlines()
    assert ["SUBSCRIPTION", "SHARD", "OFFSET", "LAG", "BYTES", "BEHIND", "LEASE", "LEFT"] == seen[0].split()
    assert [
        ["done", "0", "51", "0", "0", "1m", "1m"], ["late", "0", "11", "40", "0", "1d", "1d"],
        ["late", "1", "51", "0", "0", "1d", "1d"],
    ] == [line.split() for line in seen[1:]]
    document = on_fake("subscriptions", "list", "orders", "--json").document
    assert [2, 1] == [len(shard["subscriptions"]) for shard in document["shards"]]
    assert {
        "name": "late", "offset": 11, "lag": 40, "bytes_behind": 0, "lease_ms": DAY_MS, "committed_ms": 0,
        "expires_in_ms": DAY_MS,
    } == document["shards"][0]["subscriptions"][1]
    assert [1] == [each["shard"] for each in on_fake(
        "subscriptions", "list", "orders", "--shard", "1", "--json").document["shards"]]


def test_a_shard_without_a_leader_says_so_and_the_others_are_shown(fake: FakeInAThread, on_fake: Cli):
    fake.shard(0).positions = {"one": (11, DAY_MS)}
    fake.shard(1).leader = ""
    listed = on_fake("subscriptions", "list", "orders", "--timeout", "0.3", "--json")
    assert 3 == listed.code
    first, second = listed.document["shards"]
    assert (11, "UNAVAILABLE") == (first["subscriptions"][0]["offset"], second["error"])


def test_subscriptions_are_deleted(fake: FakeInAThread, on_fake: Cli):
    fake.shard(0).positions = {"one": (11, DAY_MS)}
    fake.shard(1).positions = {"one": (11, DAY_MS), "two": (1, DAY_MS)}
    assert {"group": "orders", "subscription": "one", "shards": [0, 1]} == on_fake(
        "subscriptions", "delete", "orders", "one", "--json").document
    done = on_fake("subscriptions", "delete", "orders", "two")
    assert ("subscription two deleted\n", 0) == (done.out, done.code)
    assert [{}, {}] == [fake.shard(index).positions for index in (0, 1)]
    gone = on_fake("subscriptions", "delete", "orders", "two")
    assert (1, True) == (gone.code, "has a subscription two" in gone.err)


@pytest.mark.parametrize("arguments", [
    ("read", "orders", "--lease", "7d"), ("read", "orders", "--subscription", "a/b"),
    ("read", "orders", "--subscription", "a", "--lease", "7"),
    ("tail", "orders", "--subscription", "a", "--lease", "w"),
    ("tail", "orders", "--subscription", "a", "--lease", "0s"), ("subscriptions", "delete", "orders", "a b"),
])
def test_wrong_usage_is_told(on_fake: Cli, arguments: tuple[str, ...]):
    assert 2 == on_fake(*arguments).code


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800)])
def test_durations(text: str, seconds: int):
    assert seconds == seconds_of(text)


@pytest.mark.parametrize(("ms", "text"), [(500, "0.5s"), (90_000, "1.5m"), (3_600_000, "1h"), (7 * DAY_MS, "7d")])
def test_spans(ms: int, text: str):
    assert text == span(ms)


def test_on_a_real_cluster(on: Cli, group: str, tmp_path: Path):
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(60)))
    assert 0 == on("append", group, str(file)).code
    seen = on("read", group, "--subscription", "one", "--limit", "20").out.split()
    seen += on("read", group, "--subscription", "one").out.split()
    assert sorted(map(str, range(60))) == sorted(seen)
    assert "" == on("read", group, "--subscription", "one").out
    assert "one" in on("subscriptions", "list", group).out
    assert 0 == on("subscriptions", "delete", group, "one").code
    assert sorted(map(str, range(60))) == sorted(on("read", group, "--subscription", "one").out.split())
