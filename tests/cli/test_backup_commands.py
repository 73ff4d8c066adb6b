"""`tidemark backup` and `restore` on a fake cluster: results, JSON documents, errors, and the example Jobs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cli_harness import Cli
from tidemark_core.optimistic.cells import ElementCell, Place, Sort, StringCell
from tidemark_core.optimistic.stamps import Actor, Stamp

from tests.fake_in_a_thread import FakeInAThread, FakeKeyspace
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes" / "backup"


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    """One node with the documents `settings` and `copy`."""
    started = FakeInAThread()

    async def add() -> None:
        started.cluster.add_documents("settings", 2)
        started.cluster.add_documents("copy", 1)

    started.call(add())
    yield started
    started.stop()


@pytest.fixture
def on_fake(fake: FakeInAThread, cli: Cli) -> Cli:
    return lambda *arguments: cli(*arguments, "--cluster", fake.address)


def test_a_backup_is_taken_verified_and_restored(
    on_fake: Cli, cli: Cli, fake: FakeInAThread, tmp_path: Path
):
    for key in ("a", "b", "c"):
        assert on_fake("put", "settings", key, f"value of {key}").code == 0
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    made = on_fake("backup", "settings", "--to", first)
    assert (made.code, made.out.split(" are in ")[0]) == (0, "3 documents of 2 shards of settings")
    assert on_fake("put", "settings", "b", "value of b, again").code == 0
    changed = on_fake("backup", "settings", "--to", third, "--since", first, "--json")
    assert changed.code == 0 and (changed.document["count"], changed.document["fetched"]) == (3, 1)
    assert changed.document["notes"] == []
    for node in fake.cluster.nodes.values():
        node.changes.lineage = b"another history."
    again = on_fake("backup", "settings", "--to", second, "--since", first, "--json")
    assert again.code == 0 and again.document["count"] == again.document["fetched"] == 3
    assert "everything is read" in again.err and again.document["notes"]
    verified = cli("backup", "verify", second, "--json")
    assert verified.code == 0
    assert {key: verified.document[key] for key in ("group", "count", "content")} == {
        "group": "settings", "count": 3, "content": again.document["content"]}
    restored = on_fake("restore", third, "--group", "copy", "--json")
    assert restored.code == 0, restored.err
    assert restored.document == {
        "group": "copy", "from": third, "documents": 3, "written": 3, "expired": 0,
        "content": again.document["content"], "equal": True,
    }
    assert on_fake("get", "copy", "b").out.startswith("value of b")


def test_errors_are_one_line_with_what_to_do(on_fake: Cli, cli: Cli, tmp_path: Path):
    folder = tmp_path / "b"
    assert on_fake("put", "settings", "k", "v").code == 0
    assert on_fake("backup", "settings", "--to", str(folder)).code == 0
    exists = on_fake("backup", "settings", "--to", str(folder), "--json")
    assert (exists.code, exists.document["error"]) == (1, "BACKUP_EXISTS")
    full = on_fake("restore", str(folder), "--group", "settings", "--json")
    assert (full.code, full.document["error"]) == (1, "GROUP_NOT_EMPTY")
    assert "new group" in full.document["advice"]
    next(folder.rglob("*.arrow")).unlink()
    for damaged in (cli("backup", "verify", str(folder)), on_fake("restore", str(folder), "--group", "copy")):
        assert damaged.code == 1 and "000000.arrow is missing" in damaged.err and "hint:" in damaged.err
    log = on_fake("backup", "orders", "--to", str(tmp_path / "log"), "--json")
    assert (log.code, log.document["error"]) == (1, "WRONG_KIND")
    absent = on_fake("backup", "absent", "--to", str(tmp_path / "log"), "--json")
    assert (absent.code, absent.document["error"]) == (1, "UNKNOWN_GROUP")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["settings"], "names no folder for the backup"),
        (["verify"], "names no folder to verify"),
        (["settings", "dir", "--to", "x"], "goes with `tidemark backup verify DIR`"),
        (["settings", "--to", "x", "--lease", "1"], "--lease"),
        (["--to", "x"], "name a GROUP or a --keyspace, one of them"),
        (["settings", "--keyspace", "carts", "--to", "x"], "name a GROUP or a --keyspace, one of them"),
        (["--keyspace", "carts", "--to", "x", "--since", "y"], "goes with a GROUP"),
        (["--keyspace", "carts", "--to", "x", "--lease", "60"], "Invalid value for --lease: goes with a GROUP"),
    ],
)
def test_wrong_usage_is_said(cli: Cli, arguments: list[str], said: str):
    ran = cli("backup", *arguments)
    assert ran.code == 2 and said in " ".join(ran.err.split())


@pytest.mark.parametrize("arguments", [[], ["--group", "g", "--keyspace", "k"]])
def test_a_restore_goes_to_a_group_or_a_keyspace(cli: Cli, arguments: list[str]):
    ran = cli("restore", "dir", *arguments)
    assert ran.code == 2 and "name a group or a keyspace, one of them" in " ".join(ran.err.split())


# --- keyspaces


@pytest.fixture
def keyspaces(fake: FakeInAThread) -> tuple[FakeKeyspace, FakeKeyspace]:
    """The keyspaces `carts`, with 30 Strings and an element, and `copy`, without any."""
    async def add() -> tuple[FakeKeyspace, FakeKeyspace]:
        return fake.cluster.add_keyspace("carts", 4, 1), fake.cluster.add_keyspace("copy", 2, 1)

    def stamp(ms: int) -> Stamp:
        return Stamp(ms, 0, "n", b"12345678")

    carts, copy = fake.call(add())
    carts.cells = {Place(Sort.STRING, b"key %d" % n): StringCell(stamp(100 + n), False, 0, b"v") for n in range(30)}
    carts.cells[Place(Sort.ELEMENT, b"set", b"red")] = {
        Actor("n", b"12345678"): ElementCell(1, False, stamp(90), 0, b"")}
    return carts, copy


def test_d82_d83_a_keyspace_is_backed_up_and_restored(
    on_fake: Cli, cli: Cli, keyspaces: tuple[FakeKeyspace, FakeKeyspace], tmp_path: Path
):
    carts, copy = keyspaces
    folder = str(tmp_path / "b")
    made = on_fake("backup", "--keyspace", "carts", "--to", folder)
    assert (made.code, made.out.split(" are in ")[0]) == (0, "31 cells of 4 ranges of keyspace carts"), made.err
    verified = cli("backup", "verify", folder, "--json")
    assert (verified.document["keyspace"], verified.document["count"]) == ("carts", 31)
    assert {"range", "floorMilliseconds", "count", "digest", "files"} == set(verified.document["ranges"][0])
    assert cli("backup", "verify", folder).out.count("31 cells of 4 ranges of keyspace carts") == 1
    restored = on_fake("restore", folder, "--keyspace", "copy", "--json")
    assert restored.code == 0, restored.err
    assert restored.document == {
        "keyspace": "copy", "from": folder, "cells": 31, "refused": 0, "refusedBy": {}, "refusedCells": []}
    assert carts.cells == copy.cells
    full = on_fake("restore", folder, "--keyspace", "copy", "--json")
    assert (full.code, full.document["error"]) == (1, "KEYSPACE_NOT_EMPTY") and "--resume" in full.document["advice"]
    again = on_fake("restore", folder, "--keyspace", "copy", "--resume")
    assert (again.code, again.out.strip()) == (0, f"31 cells of {folder} are in copy, or something newer is")
    exists = on_fake("backup", "--keyspace", "carts", "--to", folder, "--json")
    assert (exists.code, exists.document["error"]) == (1, "BACKUP_EXISTS")
    other = on_fake("restore", folder, "--group", "copy", "--json")
    assert (other.code, other.document["error"]) == (1, "OTHER_BACKUP")


def test_d83_cells_that_are_refused_are_named_and_the_exit_code_is_1(
    on_fake: Cli, keyspaces: tuple[FakeKeyspace, FakeKeyspace], tmp_path: Path
):
    keyspaces[1].floor_ms = 101
    folder = str(tmp_path / "b")
    assert on_fake("backup", "--keyspace", "carts", "--to", folder).code == 0
    said = on_fake("restore", folder, "--keyspace", "copy")
    assert said.code == 1 and said.out.startswith("28 cells of")
    assert "refused, at or below the floor: key b'key 1' of keyspace 'copy'" in said.err
    assert "element b'red' of key b'set'" in said.err
    assert "3 cells are refused. A new keyspace has no floor yet" in " ".join(said.err.split())
    as_json = on_fake("restore", folder, "--keyspace", "copy", "--resume", "--json")
    assert (as_json.code, as_json.document["refused"], as_json.document["refusedBy"]) == (1, 3, {"below": 3})
    assert {"key": "set", "element": "red", "outcome": "below"} in as_json.document["refusedCells"]


def test_a_backup_and_a_restore_of_a_keyspace_that_ended_early_say_how_they_go_on(
    on_fake: Cli, fake: FakeInAThread, keyspaces: tuple[FakeKeyspace, FakeKeyspace], tmp_path: Path
):
    (node,) = fake.cluster.nodes.values()
    folder = str(tmp_path / "b")
    backup = ("backup", "--keyspace", "carts", "--to", folder)
    node.keyspaces.outcomes.extend(["unknown"] * 1000)
    short = on_fake(*backup, "--timeout", "0.3")
    assert short.code == 3 and "is not finished: the same command goes on with it" in " ".join(short.err.split())
    node.keyspaces.outcomes.clear()
    assert on_fake(*backup).code == 0
    node.keyspaces.silent = True
    restore = ("restore", folder, "--keyspace", "copy", "--resume")
    program = [sys.executable, "-m", "tidemark_cli", *restore, "--cluster", fake.address]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        wait_until(lambda: "Import" in node.keyspaces.calls, "it writes")
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=20)
    assert 130 == running.returncode and b"Traceback" not in err
    assert b"is not finished: the same command with --resume goes on" in b" ".join(err.split())
    node.keyspaces.silent = False
    assert on_fake(*restore).code == 0
    assert keyspaces[0].cells == keyspaces[1].cells


@pytest.mark.parametrize("name", ["backup", "restore"])
def test_the_example_job_runs_a_command_that_exists(name: str, cli: Cli):
    *_, job = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["command"]
    assert (program, job["kind"]) == ("tidemark", "Job") and name in arguments
    arguments = [each for each in arguments if not each.startswith("--tls")]
    ran = cli(*arguments, "--help")
    assert ran.code == 0
    options = [each.split("=")[0] for each in arguments if each.startswith("--")]
    assert options and all(option in ran.out for option in options)
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert any(each.split("=")[-1].startswith(mounted["backups"] + "/") for each in arguments)
