"""`tidemark ks` on the fake cluster: every command, its forms, exit codes, pages that stop early, and the ring."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from cli_harness import Cli
from tidemark import Keyspace
from tidemark.errors import WriteUnknown
from tidemark_cli import keyspace_futures
from tidemark_cli.keyspace_times import time_of
from tidemark_core.optimistic.ring import range_of
from tidemark_core.optimistic.sizes import VALUE_BYTES_MAX
from tidemark_wire.v1 import common_pb2
from tidemark_wire.v1 import keyspaces_pb2 as wire

from tests.fake_in_a_thread import FAKE_NOW_MS, FakeInAThread
from tests.waiting import wait_until


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    """Three nodes and the keyspace `carts` of four ranges with two owners each."""
    started = FakeInAThread(shards=1, nodes=3)

    async def add() -> None:
        started.cluster.add_keyspace("carts")

    started.call(add())
    yield started
    started.stop()


@pytest.fixture
def on_fake(fake: FakeInAThread, cli: Cli) -> Cli:
    return lambda *arguments: cli("ks", *arguments, "--cluster", fake.address)


def carts(fake: FakeInAThread) -> Any:
    return fake.cluster.keyspaces["carts"]


def test_strings_are_set_read_and_deleted(on_fake: Cli, fake: FakeInAThread):
    done = on_fake("set", "carts", "k", "three apples", "--ttl", "1h", "--json")
    assert (0, "k", "ok", 2) == (done.code, *(done.document[each] for each in ("key", "outcome", "stored")))
    assert {"ms", "logical", "node", "start"} == done.document["stamp"].keys() and 3_600_000 == carts(fake).ttls[b"k"]
    shown = on_fake("set", "carts", "other", "v", "--ttl", "0s")
    assert ["KEYSPACE", "KEY", "OUTCOME", "STORED", "TIME", "NODE"] == shown.out.split("\n")[0].split()
    assert 0 == carts(fake).ttls[b"other"] and "1970-01-01T00:16:40.002" in shown.out
    assert "three apples\nv\n" == on_fake("get", "carts", "k", "other").out
    some = on_fake("get", "carts", "k", "none", "--json")
    assert (1, [{"key": "k", "value": "three apples", "outcome": "ok"}], [{"key": "none", "outcome": "ok"}]) == (
        some.code, some.document["values"], some.document["missing"])
    assert "there is no key 'none' in keyspace 'carts'" in some.err
    assert "three apples\n" == on_fake("getdel", "carts", "k").out
    assert 1 == on_fake("getdel", "carts", "k").code
    assert "ok" == on_fake("unset", "carts", "other", "--json").document["outcome"]
    assert {} == carts(fake).strings


def test_sets_and_maps(on_fake: Cli, fake: FakeInAThread):
    for member in ("red", "green", "blue"):
        assert member == on_fake("sadd", "carts", "s", member, "--json").document["member"]
    assert "blue\ngreen\nred\n" == on_fake("smembers", "carts", "s").out
    assert 0 == on_fake("srem", "carts", "s", "red").code
    assert [{"member": "blue"}, {"member": "green"}] == on_fake("smembers", "carts", "s", "--json").document
    assert "size" in on_fake("hset", "carts", "m", "size", "9", "--ttl", "5m").out
    assert "9\n" == on_fake("hget", "carts", "m", "size").out
    assert "size\t9\n" == on_fake("hgetall", "carts", "m").out
    assert '{"field": "size", "value": "9"}\n' == on_fake("hgetall", "carts", "m", "--jsonl").out
    assert [] == on_fake("hgetall", "carts", "none", "--json").document
    assert "ok" == on_fake("hdel", "carts", "m", "size", "--json").document["outcome"]
    gone = on_fake("hget", "carts", "m", "size")
    assert (1, True) == (gone.code, "no field 'size' of key 'm'" in gone.err)
    assert "ok" == on_fake("clear", "carts", "s", "--json").document["outcome"]
    assert {b"m": {}} == carts(fake).elements


def test_values_may_be_any_bytes(on_fake: Cli, fake: FakeInAThread, monkeypatch: pytest.MonkeyPatch):
    assert 0 == on_fake("set", "carts", "ff00", "0a09", "--hex").code
    assert {b"\xff\x00": b"\n\t"} == carts(fake).strings
    assert "0a09\n" == on_fake("get", "carts", "ff00", "--hex").out
    assert "ff00\t0a09\n" == on_fake("scan", "carts", "--hex").out
    assert [{"key_base64": "/wA=", "value": "\n\t"}] == on_fake("scan", "carts", "--json").document
    wrong = on_fake("get", "carts", "0x", "--hex")
    assert (2, True) == (wrong.code, "'0x' is not hexadecimal" in wrong.err)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert 0 == on_fake("set", "carts", "stdin", "-").code
    assert b"a\nb\n" == carts(fake).strings[b"stdin"]
    endless = io.BytesIO(bytes(VALUE_BYTES_MAX + 2))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(endless))
    large = on_fake("set", "carts", "large", "-")
    assert (1, True) == (large.code, f"VALUE: standard input has more than {VALUE_BYTES_MAX} bytes" in large.err)
    monkeypatch.setattr(sys, "stdin", None)
    closed = on_fake("set", "carts", "large", "-")
    assert (1, True) == (closed.code, "standard input: it is closed" in closed.err)
    assert b"large" not in carts(fake).strings


def test_a_scan_that_stops_early_says_how_to_go_on(on_fake: Cli, fake: FakeInAThread):
    carts(fake).strings = {b"%d" % number: b"v" for number in range(10)}
    keys: list[str] = []
    arguments: list[str] = []
    for _ in range(4):
        some = on_fake("scan", "carts", "--keys-only", "--limit", "3", *arguments)
        assert 0 == some.code
        keys += some.out.split()
        _, found, token = some.err.partition("go on with --token ")
        if not found:
            break
        arguments = ["--token", token.strip()]
    assert sorted(key.decode() for key in carts(fake).strings) == sorted(keys)
    assert 3 == len(on_fake("scan", "carts", "--limit", "3", "--json").document)
    wrong = on_fake("scan", "carts", "--token", "nonsense", "--json")
    assert (2, "--token: is none that a scan" in wrong.document["message"]) == (wrong.code, True)


def test_ctrl_c_ends_a_scan_with_its_token(on_fake: Cli, fake: FakeInAThread):
    carts(fake).strings = {b"%d" % number: b"v" for number in range(40)}
    for node in fake.cluster.nodes.values():
        node.keyspaces.delay_s = 0.3
    program = [sys.executable, "-m", "tidemark_cli", "ks", "scan", "carts", "--cluster", fake.address]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as scanning:
        wait_until(lambda: sum(len(node.keyspaces.calls) for node in fake.cluster.nodes.values()) > 1, "it reads")
        scanning.send_signal(signal.SIGINT)
        _, err = scanning.communicate(timeout=20)
    assert 130 == scanning.returncode
    assert b"interrupted after" in err and b"go on with --token s." in err and b"Traceback" not in err


def test_an_answer_that_promises_less_is_said(on_fake: Cli, fake: FakeInAThread):
    def all_say(outcome: str) -> None:
        for node in fake.cluster.nodes.values():
            node.keyspaces.outcomes.clear()
            node.keyspaces.outcomes.append(outcome)

    all_say("sloppy")
    assert "sloppy: other nodes keep" in on_fake("set", "carts", "k", "v", "-w", "1").err
    all_say("weak")
    weak = on_fake("get", "carts", "k", "-r", "1", "--json")
    assert "weak" == weak.document["values"][0]["outcome"] and "weak: fewer owners" in weak.err
    all_say("weak")
    assert "weak: fewer owners" in on_fake("smembers", "carts", "k", "-r", "1").err


def test_errors_have_their_reason_and_exit_code(on_fake: Cli, fake: FakeInAThread):
    carts(fake).fields["overrides_allowed"] = False
    for node in fake.cluster.nodes.values():
        node.keyspaces.lost.append(grpc.StatusCode.UNAVAILABLE)
    lost = on_fake("set", "carts", "k", "v", "--json")
    assert (3, "WRITE_UNKNOWN") == (lost.code, lost.document["error"]) and "key b'k'" in lost.document["message"]
    for node in fake.cluster.nodes.values():
        node.keyspaces.lost.clear()
        node.keyspaces.outcomes.extend(["unknown"] * 1000)
    short = on_fake("get", "carts", "k", "--timeout", "0.8", "--json")
    assert (3, "NOT_ENOUGH_OWNERS") == (short.code, short.document["error"])
    unknown = on_fake("get", "shops", "k", "--json")
    assert (1, "UNKNOWN_KEYSPACE") == (unknown.code, unknown.document["error"])

    async def push() -> None:
        fake.cluster.push()

    fake.call(push())
    denied = on_fake("get", "carts", "k", "-r", "1")
    assert 2 == denied.code and "-r: keyspace 'carts' lets no call" in denied.err and "Leave -r away" in denied.err
    assert 2 == on_fake("set", "carts", "k", "v", "--ttl", "soon").code
    assert 2 == on_fake("get", "carts", "k", "-r", "0").code
    assert 2 == on_fake("get", "carts", "").code


# --- the ring


def test_the_ring_is_drawn_by_runs(on_fake: Cli, fake: FakeInAThread):
    ring = carts(fake)
    ring.ranges = [("n0", "n1")] * 3 + [("n1", "n2")] * 5
    ring.pending = {7: ("n0", "n2")}

    async def push() -> None:
        await fake.cluster.nodes["n2"].kill()
        fake.cluster.push(["n0", "n1"])

    fake.call(push())
    shown = on_fake("ring", "carts").out
    lines = [line.split() for line in shown.splitlines()]
    assert shown.startswith("carts  id 2  8 ranges  1 move open  read repair Blocking  map ")
    lengths = 9, 9, 10
    assert [["0-2", "3", "n0,", "n1", "2", "2", "2", "-", "-"], ["3-6", "4", "n1,", "(n2)", "2", "2", "2", "-", "-"],
            ["7", "1", "n1,", "(n2)", "2", "2", "2", "n0,", "(n2)", "-"]] == [
                line[:length] for line, length in zip(lines[2:5], lengths, strict=True)]
    assert ["in order", "n2 did not answer", "n2 did not answer"] == [
        " ".join(line[length + 2:]) for line, length in zip(lines[2:5], lengths, strict=True)]
    assert [["n0", "3", "1", "18.8%"], ["n1", "8", "0", "50.0%"], ["(n2)", "5", "0", "31.2%"]] == [
        line[:4] for line in lines[6:9]]
    assert [12, 32, 20] == [len(line[4]) for line in lines[6:9]], "the bars"
    assert ["n2", "does", "not", "say:"] == lines[9][:4] and 10 == len(lines)
    document = on_fake("ring", "carts", "--json").document
    assert [(0, 2, None), (3, 6, None), (7, 7, ["n0", "n2"])] == [
        (run["first"], run["last"], run["pending"] and [each["node"] for each in run["pending"]["owners"]])
        for run in document["runs"]]
    assert [("n0", 3, 1, 0.1875, False), ("n1", 8, 0, 0.5, False), ("n2", 5, 0, 0.3125, True)] == [
        (each["node"], each["ranges"], each["moving_in"], each["share"], each["away"]) for each in document["nodes"]]
    assert (8, 1, 2, 2) == (document["ranges"], document["moves"], document["runs"][0]["n"], document["runs"][0]["r"])
    assert 1 == on_fake("ring", "shops").code


def test_the_ring_says_what_nodes_know_and_is_drawn_without_them(on_fake: Cli, fake: FakeInAThread):
    ring = carts(fake)
    ring.ranges = [("n0", "n1")] * 2 + [("n1", "n2")] * 2

    def know(node: str, index: int, **fields: Any) -> None:
        ring.shown[node, index] = fields

    for index, names in enumerate(ring.ranges):
        for name in names:
            know(name, index, exchanged_ms=FAKE_NOW_MS - 60_000 * (index + 1))
    away = wire.RangeBlock(what="it is away (D70)", member=common_pb2.Member(node="n2", incarnation="1"), for_ms=90_000)
    know("n0", 0, exchanged_ms=FAKE_NOW_MS - 7_200_000, late=True, needs_repair=True)
    know("n0", 2, hints=3, hint_bytes=50, hints_lost=1, oldest_hint_ms=FAKE_NOW_MS - 1000)
    know("n1", 3, blocks=[away, wire.RangeBlock(what="a move is open (D68)")], floor_ms=5)

    async def push() -> None:
        fake.cluster.push(["n0", "n1", "n2"])

    fake.call(push())
    lines = on_fake("ring", "carts").out.splitlines()
    assert lines[2].endswith("late at n0; needs repair at n0") and ["2h", "ago", "0"] == lines[2].split()[-10:-7]
    assert lines[3].endswith(
        "  3  hints lost: 1; n2: it is away (D70) for 1.5m; at n1: a move is open (D68)")
    first, second = [run["repair"] for run in on_fake("ring", "carts", "--json").document["runs"]]
    assert (7_200_000, ["n0"], ["n0"], []) == tuple(
        first[each] for each in ("exchanged_age_ms", "late", "needs_repair", "blocks"))
    assert (None, 3, 1, ["n1"], 90_000) == (
        second["exchanged_age_ms"], second["hints"], second["hints_lost"], second["blocks"][0]["at"],
        second["blocks"][0]["for_ms"])
    for node in fake.cluster.nodes.values():
        node.keyspaces.silent = True
    quiet = on_fake("ring", "carts", "--timeout", "0.2", "--json").document
    assert {"n0", "n1", "n2"} == quiet["silent"].keys() and [None, None] == [run["repair"] for run in quiet["runs"]]
    lines = on_fake("ring", "carts", "--timeout", "0.2").out.splitlines()
    assert ["0-1", "2", "n0,", "n1", "2", "2", "2", *"-----"] == lines[2].split() and "does not say" in lines[-1]


def test_ranges_and_hints_are_shown_and_silent_nodes_named(on_fake: Cli, fake: FakeInAThread):
    ring = carts(fake)
    ring.ranges = [("n0", "n1"), ("n1", "n2")]
    ring.shown = {
        ("n0", 1): {"hints": 1200, "hint_bytes": 54_321, "oldest_hint_ms": FAKE_NOW_MS - 90_000},
        ("n0", 0): {"needs_repair": True, "part": "copying"},
        ("n1", 0): {"exchanged_ms": FAKE_NOW_MS - 3_000, "floor_ms": 1500, "promise_ms": 2500, "version": 2,
                    "exchanges": [wire.RangeExchange(
                        member=common_pb2.Member(node="n0", incarnation="1"), began_ms=FAKE_NOW_MS - 3_000)]}}
    fake.cluster.nodes["n2"].keyspaces.silent = True
    shown = on_fake("ranges", "carts", "--timeout", "0.2")
    lines = shown.out.splitlines()
    assert "carts  2 ranges  2 of 3 nodes answered" == lines[0]
    assert ["0", "n0,", "n1", "-", "1970-01-01T00:00:01.500+00:00", "3s", "ago", "0"] == lines[2].split()[:8]
    assert lines[2].endswith("needs repair at n0; copying at n0") and "n2 did not answer" in lines[3]
    assert "n2 does not say: " in lines[-1]
    document = on_fake("ranges", "carts", "--timeout", "0.2", "--json").document
    assert (2, ["n0"], {"n0": 3_000}) == (
        document["ranges"][0]["version"], document["ranges"][0]["copying"],
        document["ranges"][0]["nodes"]["n1"]["exchange_ages_ms"])
    one = on_fake("ranges", "carts", "--range", "0", "--timeout", "0.2").out.splitlines()
    assert "carts  range 0  needs repair at n0  copying at n0  2 of 3 nodes answered" == one[0]
    assert [["n0", "copying", "1", "-", "-", "0", "-"],
            ["n1", "owner", "2", "1970-01-01T00:00:01.500+00:00", "1970-01-01T00:00:02.500+00:00", "0", "n0", "3s",
             "ago"]] == [line.split() for line in one[2:4]]
    wrong = on_fake("ranges", "carts", "--range", "2", "--timeout", "0.2")
    assert (2, True) == (wrong.code, "--range: 2, the keyspace has 2 ranges" in wrong.err.replace("'", ""))
    kept = on_fake("hints", "carts", "--timeout", "0.2").out.splitlines()
    assert "carts  1,200 hints  54,321 bytes  0 lost  2 of 3 nodes answered" == kept[0]
    assert [["n0", "0", "0", "0", "-", "0", "yes", "n0,", "n1"],
            ["n0", "1", "1200", "54,321", "1.5m", "ago", "0", "-", "n1,", "n2"]] == [line.split() for line in kept[2:4]]
    document = on_fake("hints", "carts", "--timeout", "0.2", "--json").document
    assert (1200, ["n0", "n1"], ["n2"]) == (document["hints"], document["nodes"], list(document["silent"]))
    for node in fake.cluster.nodes.values():
        node.keyspaces.silent = True
    assert 3 == on_fake("hints", "carts", "--timeout", "0.2").code


def test_a_key_is_explained(on_fake: Cli, fake: FakeInAThread):
    members = {name: common_pb2.Member(node=name, incarnation="1") for name in ("n0", "n1", "n2")}
    old, new = [
        wire.SeenCell(sort="string", stamp=wire.KeyspaceStamp(ms=1000 * ms, node="n0", start=b"12345678"),
                      value_bytes=2345 * ms, value_digest=255, expires_at_ms=9000)
        for ms in (1, 2)]
    carts(fake).explained = wire.KeyExplained(
        outcome="unknown", range=3, version=4, own=[members["n1"], members["n0"]], pending=[members["n2"]], winner=new,
        shown=True, why="the greatest stamp of 2 cells wins (D55), and it is live", now_ms=65_000, nodes=[
            wire.ExplainedNode(
                member=members["n0"], answered=True, part="owner", version=4, exchanged_ms=5000, cells=[old],
                lacks=True),
            wire.ExplainedNode(member=members["n1"]),
            wire.ExplainedNode(
                member=members["n2"], answered=True, part="pending", version=4, hints=[new], needs_repair=True)])
    lines = on_fake("explain", "carts", "k").out.splitlines()
    assert "carts  key k  range 3  record 4  owners n0, n1  moving to n2" == lines[0]
    assert lines[1] == (
        "  a read of all owners shows a value of 4,690 bytes: the greatest stamp of 2 cells wins (D55), and it is live")
    assert [[">", "string", "1970-01-01T00:00:02.000+00:00", "n0", "4,690", "00000000000000ff",
             "1970-01-01T00:00:09.000+00:00", "-", "n2"],
            ["string", "1970-01-01T00:00:01.000+00:00", "n0", "2,345", "00000000000000ff",
             "1970-01-01T00:00:09.000+00:00", "n0", "-"]] == [line.split() for line in lines[3:5]]
    assert [["n0", "owner", "4", "-", "-", "1m", "ago", "1", "0", "lacks", "it"],
            ["(n1)", *"-------", "did", "not", "answer"],
            ["n2", "pending", "4", "-", "-", "-", "0", "1", "needs", "repair"]] == [line.split() for line in lines[6:9]]
    assert "  n1 did not answer, an owner is among them" == lines[9]
    document = on_fake("explain", "carts", "k", "--element", "red", "--json").document
    assert ("red", False, ["n1"], "00000000000000ff", None) == (
        document["element"], document["equal"], document["silent"], document["winner"]["value_digest"],
        document["winner"]["dot"])
    assert {"node", "incarnation", "answered", "cells", "hints"} == document["nodes"][1].keys()
    assert 2 == on_fake("explain", "carts", "0x", "--hex").code
    carts(fake).explained = wire.KeyExplained(outcome="ok", why="no owner that has answered holds a cell")
    assert "shows nothing: no owner" in on_fake("explain", "carts", "k").out


def test_times_that_no_calendar_has_are_numbers():
    assert ("1970-01-01T00:00:01.500+00:00", str(1 << 62)) == (time_of(1500), time_of(1 << 62))


def test_d84_stamps_from_the_future_are_shown_and_repaired(
    on_fake: Cli, fake: FakeInAThread, monkeypatch: pytest.MonkeyPatch
):
    def stamp(ms: int) -> wire.KeyspaceStamp:
        return wire.KeyspaceStamp(ms=ms, node="n0", start=b"12345678")

    assert [2, 2] == [on_fake("repair-future", "carts", *wrong).code for wrong in ((), ("k", "--range", "1"))]
    index = range_of(b"k", 4)
    assert "carts  no stamp is from the future\n" == on_fake("repair-future", "carts", "--range", str(index)).out

    carts(fake).futures = [wire.FutureKey(key=b"k", stamp=stamp(9_000)),
                           wire.FutureKey(key=b"k", stamp=stamp(9_500), elements=True)]
    dry = on_fake("repair-future", "carts", "--range", str(index), "--dry-run", "--json")
    assert (1, True, [("k", "found", 9_000), ("k", "elements", 9_500)]) == (
        dry.code, dry.document["dry_run"],
        [(each["key"], each["outcome"], each["stamp"]["ms"]) for each in dry.document["keys"]])
    assert "copy it to another key or keyspace" in dry.err
    assert not any("RepairFuture" in node.keyspaces.calls for node in fake.cluster.nodes.values())

    monkeypatch.setattr(keyspace_futures, "KEYS_MAX", 2)
    cut = on_fake("repair-future", "carts", "--range", str(index), "--dry-run", "--json")
    assert (False, True) == (dry.document["more"], cut.document["more"])
    assert "only 2 keys of the range were looked at: repair them, then repeat the command" in cut.err

    carts(fake).futures.pop()
    assert 0 == on_fake("repair-future", "carts", "k", "--dry-run").code
    carts(fake).repaired[b"k"] = wire.FutureRepaired(
        outcome="ok", replaced=[wire.ReplacedStamp(was=stamp(9_000), became=stamp(1_000))])
    done = on_fake("repair-future", "carts", "--range", str(index))
    assert 0 == done.code and ["k", "ok", "1970-01-01T00:00:09.000+00:00", "1970-01-01T00:00:01.000+00:00", "-"] == (
        done.out.splitlines()[1].split())
    carts(fake).repaired[b"k"] = wire.FutureRepaired(
        outcome="unknown", missing=[common_pb2.Member(node="n1", incarnation="1")])
    left = on_fake("repair-future", "carts", "k", "--json")
    assert (1, ["n1"], "unknown") == (
        left.code, left.document["keys"][0]["missing"], left.document["keys"][0]["outcome"])
    assert "n1 did not answer; repeat it when they do" in left.err


def test_d84_a_key_without_an_answer_does_not_end_the_repair_of_a_range(
    on_fake: Cli, fake: FakeInAThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = range_of(b"k", 4)
    other = next(key for key in (b"k%d" % n for n in range(100)) if range_of(key, 4) == index)
    carts(fake).futures = [
        wire.FutureKey(key=key, stamp=wire.KeyspaceStamp(ms=9_000, node="n0", start=b"12345678"))
        for key in (b"k", other)]
    repair = Keyspace.repair_future

    async def silent(self: Keyspace, key: bytes) -> Any:
        if key == b"k":
            raise WriteUnknown("the repair has no answer", keyspace="carts", key=key)
        return await repair(self, key)

    monkeypatch.setattr(Keyspace, "repair_future", silent)
    done = on_fake("repair-future", "carts", "--range", str(index), "--json")
    assert (1, ["unknown", "ok"]) == (done.code, [each["outcome"] for each in done.document["keys"]])
    assert "the repair has no answer" in done.err
