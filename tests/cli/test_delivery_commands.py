"""read by delivery, tail, and explain read: what people and programs see of who sends what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidemark
import tidemark.sync
from cli_harness import Cli
from google_crc32c import value as crc32c
from tidemark import ExplainedItem, Explanation
from tidemark_cli.explain import document_of, ranges_of
from tidemark_core.base.entry import Batch
from tidemark_core.delivery.order import Mode

from tests.fake_in_a_thread import FakeInAThread
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    """Three members of two shards."""
    started = FakeInAThread(shards=2, nodes=3)
    yield started
    started.stop()


@pytest.fixture
def on_fake(fake: FakeInAThread, cli: Cli) -> Cli:
    """Run a command line on the fake cluster."""
    return lambda *arguments: cli(*arguments, "--cluster", fake.address)


def append_lines(on: Cli, group: str, tmp_path: Path, count: int) -> None:
    """Append to every shard; without keys all may go to the one whose leader is known first."""
    file = tmp_path / f"lines-{count}"
    file.write_text("".join(f'{{"number": {number}}}\n' for number in range(count)))
    result = on("append", group, str(file), "--key-field", "number")
    assert result.code == 0, result.err


def fill(fake: FakeInAThread, count: int) -> None:
    """Append numbers in batches of ten, to each shard in turn."""
    with tidemark.sync.connect(fake.address) as client, client.appender("orders", batch_records=10) as appender:
        for start in range(0, count, 10):
            appender.append_batch([b"%d" % number for number in range(start, start + 10)])


# --- read near a place, on real nodes --------------------------------------------------------------------------


def test_whoever_stands_near_sends_and_the_next_one_when_it_is_down(
    on: Cli, group: str, state: Path, tmp_path: Path
):
    append_lines(on, group, tmp_path, 2_000)
    cluster = on("get", "cluster", "dev", "--json").document
    location_of = {node["name"]: node["location"] for node in cluster["status"]["nodes"]}
    assert sorted(location_of.values()) == [f"region=eu,zone={zone},rack=r1" for zone in "abcd"]
    ensemble = on("explain", "read", group, "--json").document["ensemble"]
    for near in ensemble:
        zone = location_of[near].split(",")[1]
        explained = on("explain", "read", group, "--location", zone, "--json").document
        assert explained["shared_scopes"] == {node: int(node == near) for node in ensemble}
        read = on("read", group, "--shard", "0", "--location", zone, "--stats", "--json")
        assert read.code == 0
        stats = json.loads(read.err)
        (share,) = [node["share"] for node in stats["nodes"] if node["node"] == near]
        assert stats["bytes_delivered"] > 10_000, "beside it the other members' answers are nothing"
        assert share > 0.95
        down = on("explain", "read", group, "--location", zone, "--down", near, "--json").document
        assert near not in {row["sender"] for row in down["ranges"]}
    widest = on("explain", "read", group, "--location", "region=eu,zone=elsewhere", "--json").document
    assert set(widest["shared_scopes"].values()) == {1}


# --- read ------------------------------------------------------------------------------------------------------


def test_read_says_what_crossed_the_network(fake: FakeInAThread, on_fake: Cli):
    fill(fake, 500)
    result = on_fake("read", "orders", "--mode", "scd", "--stats", "--jsonl")
    assert sorted(int(json.loads(line)["value"]) for line in result.out.splitlines()) == list(range(500))
    stats = json.loads(result.err)
    assert [node["node"] for node in stats["nodes"]] == ["n0", "n1", "n2"]
    assert sum(node["share"] for node in stats["nodes"]) == pytest.approx(1, abs=0.001)
    assert stats["bytes_received"] > stats["bytes_delivered"] > 0
    assert (stats["duplicates"], stats["rewinds"], stats["known_down"]) == (0, {}, {})
    for_people = on_fake("read", "orders", "--mode", "all", "--stats")
    assert len(for_people.out.splitlines()) == 500
    assert "for each) · duplicates" in for_people.err
    assert "PASSED OVER NOW" in for_people.err
    assert on_fake("read", "orders", "--mode", "leader").code == 0


def test_read_goes_around_members_and_says_so(fake: FakeInAThread, on_fake: Cli):
    fill(fake, 300)
    fake.call(fake.cluster.nodes["n2"].kill())
    result = on_fake("read", "orders", "--mode", "scd", "--stats")
    assert sorted(map(int, result.out.splitlines())) == list(range(300))
    assert "CLOSED" in result.err
    assert "n2" in result.err


def test_read_near_a_location(fake: FakeInAThread, on_fake: Cli):
    fill(fake, 300)
    fake.cluster.nodes["n1"].zone = "a"
    fake.cluster.push()
    result = on_fake("read", "orders", "--mode", "scd", "--location", "zone=a", "--stats", "--json")
    assert len(result.document) == 300
    shares = {node["node"]: node["share"] for node in json.loads(result.err)["nodes"]}
    assert shares["n1"] > 0.6
    wrong = on_fake("read", "orders", "--mode", "scd", "--location", "planet=earth")
    assert (wrong.code, wrong.out) == (2, "")
    assert "location: 'planet=earth'" in wrong.err


def test_read_from_a_time_on(fake: FakeInAThread, on_fake: Cli):
    for shard, logged_ms in ((0, 1_000_000), (1, 1_000_000)):
        fake.shard(shard).logged_ms = logged_ms
    fill(fake, 100)
    for shard in (0, 1):
        fake.shard(shard).logged_ms = 2_000_000
    fill(fake, 60)
    newer = on_fake("read", "orders", "--from", "1970-01-01T00:16:41Z", "--json").document
    assert sorted(int(record["value"]) for record in newer) == list(range(60))
    assert len(on_fake("read", "orders", "--from", "1970-01-01T00:16:40Z", "--json").document) == 160
    assert on_fake("read", "orders", "--from", "2099-01-01", "--json").document == []
    wrong = on_fake("read", "orders", "--from", "yesterday")
    assert wrong.code == 2
    assert "nor a time" in wrong.err


def test_gaps_are_told_where_asked_for(fake: FakeInAThread, on_fake: Cli):
    fill(fake, 100)
    fake.shard(0).trimmed_to = 11
    result = on_fake("read", "orders", "--mode", "scd", "--shard", "0", "--from", "3", "--gaps", "--json")
    assert result.document[0] == {"gap": "TRIM", "shard": 0, "first": 3, "last": 10}
    assert result.document[1]["offset"] == 11
    plain = on_fake("read", "orders", "--mode", "scd", "--shard", "0", "--from", "3", "--gaps")
    assert "TRIM: shard 0, offsets 3 to 10" in plain.err
    assert len(plain.out.splitlines()) == len(result.document) - 1
    refused = on_fake("read", "orders", "--mode", "scd", "--shard", "0", "--from", "3")
    assert (refused.code, refused.out) == (1, "")
    assert "TRIMMED" in refused.err


def test_t11_a_batch_that_cannot_be_decoded_is_an_error_a_gap_or_a_note(fake: FakeInAThread, on_fake: Cli):
    """Rule T11: `read` and `tail` name its offsets and go on behind it where asked."""
    fill(fake, 10)
    payload = b"not arrow at all"
    foreign = Batch(b"p" * 16, 0, 3, 1, 1, crc32c(payload), payload)
    fake.script(fake.added(0, foreign)).result(10)
    fill(fake, 40)
    where = ("read", "orders", "--shard", "0", "--from", "0")

    refused = on_fake(*where)
    assert refused.code == 1
    assert "UNDECODABLE_BATCH: offsets 11 to 13 of shard 0" in refused.err
    skipped = on_fake(*where, "--skip-undecodable")
    assert (skipped.code, skipped.err.count("passed over 3 records that cannot be decoded")) == (0, 1)
    assert len(skipped.out.splitlines()) > 10, "it goes on behind the batch"
    gaps = on_fake(*where, "--gaps", "--jsonl")
    assert {"gap": "UNDECODABLE", "shard": 0, "first": 11, "last": 13} in map(json.loads, gaps.out.splitlines())
    last = on_fake("tail", "orders", "--shard", "0", "-n", "100")
    assert (last.code, last.out) == (0, skipped.out)
    assert "UNDECODABLE: shard 0, offsets 11 to 13" in last.err


# --- tail ------------------------------------------------------------------------------------------------------


def test_tail_shows_the_last_records_of_each_shard(fake: FakeInAThread, on_fake: Cli):
    fill(fake, 200)
    records = on_fake("read", "orders", "--json").document
    for count in (0, 3, 25, 1000):
        result = on_fake("tail", "orders", "-n", str(count), "--json")
        assert result.code == 0, result.err
        expected = [
            record for shard in (0, 1)
            for record in [found for found in records if found["shard"] == shard][-count or len(records):]
        ]
        assert result.document == (expected if count else [])
    assert on_fake("tail", "orders", "--shard", "1", "-n", "2").out.split() == [
        record["value"] for record in records if record["shard"] == 1
    ][-2:]


def test_tail_looks_further_back_where_control_entries_are(fake: FakeInAThread, on_fake: Cli):
    fill(fake, 20)

    async def elect() -> None:
        for _ in range(50):
            fake.cluster.elect(fake.shard(0), "n1", push=False)
        fake.cluster.push()

    fake.call(elect())
    result = on_fake("tail", "orders", "--shard", "0", "-n", "4", "--jsonl")
    assert len(result.out.splitlines()) == 4


def test_tail_follows_until_it_is_interrupted(fake: FakeInAThread, on_fake: Cli):
    fill(fake, 20)
    command = [
        sys.executable, "-m", "tidemark_cli", "tail", "orders", "-f", "-n", "1", "--shard", "0", "--stats",
        "--mode", "scd", "--cluster", fake.address,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    try:
        first = process.stdout.readline()
        assert first.strip().isdecimal()
        fill(fake, 40)
        seen = [int(process.stdout.readline()) for _ in range(2)]
        assert seen == sorted(seen)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(10) == 130
        told = process.stderr.read()
        assert "interrupted after" in told
        assert "received" in told
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def test_a_tail_without_an_end_is_no_document(on_fake: Cli):
    assert on_fake("tail", "orders", "-f", "--json").code == 2
    assert on_fake("tail", "orders", "--stats").code == 2


# --- explain ---------------------------------------------------------------------------------------------------


def item(first: int, last: int, order: str, sender: str = "", senders: str = "", kind: str = "DATA") -> ExplainedItem:
    return ExplainedItem(first, last, kind, 100, tuple(order), sender or order[0], tuple(senders or sender or order[0]))


def test_neighbours_that_go_the_same_way_are_one_row():
    items = [item(1, 10, "abc"), item(11, 20, "abc"), item(21, 21, "bca"), item(22, 30, "abc")]
    assert [(found.first, found.last, found.entries, found.bytes, found.sender) for found in ranges_of(items)] == [
        (1, 20, 2, 200, "a"), (21, 21, 1, 100, "b"), (22, 30, 1, 100, "a"),
    ]


@pytest.mark.parametrize(
    ("mode", "scopes", "found", "words"),
    [
        (Mode.SINGLE_COPY, (), item(1, 1, "abc"), "first in the reading order"),
        (Mode.SINGLE_COPY, (), item(1, 1, "abc", "b", "ab"), "a down, next in the order; a would send it too, if back"),
        (Mode.SINGLE_COPY, (), item(1, 1, "abc")._replace(sender="", senders=()), "all are down"),
        (Mode.ALL_SEND_ALL, (), item(1, 1, "abc")._replace(sender="", senders=tuple("abc")), "everybody sends"),
        (Mode.LOCAL, (1, 2, 1), item(1, 1, "bac"), "shares 2 location scopes with the reader"),
        (Mode.LOCAL, (1, 2, 1), item(1, 1, "bac", "a", "ba"), "b down, next in the order; shares 1 location scope"),
    ],
)
def test_every_sender_has_a_reason(mode, scopes, found, words):
    explanation = Explanation("a", mode, tuple("abc"), scopes, ("x",), 0, 9, 9, (found, item(2, 2, "abc", kind="HOLE")))
    document = document_of("orders", 0, explanation)
    (row,) = document["ranges"]
    assert words in row["why"]
    assert document["control_kinds"] == {"HOLE": 1}


def test_explain_says_who_sends_what_and_who_reads_now(on: Cli, group: str, state: Path, tmp_path: Path):
    append_lines(on, group, tmp_path, 200)
    document = on("explain", "read", group, "--json").document
    ensemble = document["ensemble"]
    assert len(ensemble) == 3
    assert document["control_kinds"]["EPOCH_START"] >= 1
    assert document["streams"] == []
    (row, *_) = document["ranges"]
    order = row["order"]
    assert set(order) == set(ensemble) == set(row["keepers"])
    assert (row["sender"], row["why"]) == (order[0], "first in the reading order")
    assert document["through"] == document["released"] >= row["last"]

    down = on("explain", "read", group, "--down", order[0], "--json").document
    row = down["ranges"][0]
    assert (row["sender"], row["senders"]) == (order[1], order[:2])
    assert f"{order[0]} down, next in the order" in row["why"]
    near = on("explain", "read", group, "--location", "zone=nowhere", "--json").document
    assert (near["mode"], set(near["shared_scopes"])) == ("LOCAL", set(ensemble))

    command = [sys.executable, "-m", "tidemark_cli", "tail", group, "-f", "--mode", "scd", "--dir", str(state)]
    tailing = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        def streams_shown() -> list[dict]:
            return on("explain", "read", group, "--json").document["streams"]

        wait_until(lambda: len(streams_shown()) >= 3, "three nodes send to the reader")
        streams = streams_shown()
        assert {stream["node"] for stream in streams} == set(ensemble)
        shown = on("explain", "read", group)
        assert "SINGLE_COPY" in shown.out
        assert shown.out.count("waiting") == 3
    finally:
        tailing.kill()
        tailing.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--down", "nobody"), 2, "down: 'nobody' is no member"),
        (("--shard", "7"), 1, "has no shard 7"),
        (("--location", "zone"), 2, "location: 'zone'"),
        (("--mode", "leader"), 2, "needs no explanation"),
    ],
)
def test_wrong_questions_name_what_is_wrong(on: Cli, group: str, arguments, code, told):
    result = on("explain", "read", group, *arguments)
    assert (result.code, result.out) == (code, "")
    assert told in result.err
    assert on("explain", "read", "nothing").code == 1


def test_the_client_asks_another_member_when_one_does_not_answer(on: Cli, group: str, state: Path, tmp_path: Path):
    append_lines(on, group, tmp_path, 10)
    first = on("explain", "read", group, "--json").document
    assert on("dev", "kill", first["asked"]).code == 0
    try:
        second = on("explain", "read", group, "--json").document
        assert second["asked"] != first["asked"]
        assert list(second["silent"]) == [first["asked"]]
        assert second["ensemble"] == first["ensemble"]
    finally:
        assert on("dev", "start", first["asked"]).code == 0
