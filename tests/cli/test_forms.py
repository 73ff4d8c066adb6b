"""Output for programs: one document always, in the form asked for, whatever goes wrong; and no traceback."""

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
import yaml
from cli_harness import Cli
from rich.padding import Padding
from tidemark_cli import output, running
from tidemark_cli.commands import ROOMS
from tidemark_cli.forms import asked_for
from tidemark_cli.output import Form
from tidemark_cli.rooms import command_of

from tests.fake_in_a_thread import FakeInAThread

TIDEMARK = [sys.executable, "-m", "tidemark_cli"]


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    started = FakeInAThread()
    yield started
    started.stop()


@pytest.fixture
def on(fake: FakeInAThread, cli: Cli) -> Cli:
    """Run a command line on the fake cluster."""
    return lambda *arguments: cli(*arguments, "--cluster", fake.address)


def run(*arguments: str, redirect: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    shell = ["sh", "-c", f'exec "$@" {redirect}', "sh", *TIDEMARK, *arguments]
    return subprocess.run(shell, capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore


# --- commands are loaded when they run


def test_each_command_is_listed_with_the_first_line_of_its_own_help():
    for name, room in ROOMS.items():
        assert room.help == command_of(name, room).help.strip().splitlines()[0], name


def test_help_loads_no_command():
    script = (
        "import sys, tidemark_cli.commands as c; assert c.run(['--help']) == 0; "
        "print([m for m in ('tidemark', 'grpc', 'pyarrow', 'pydantic') if m in sys.modules], file=sys.stderr)")
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert finished.stderr.strip() == "[]"
    for name in ROOMS:
        assert f" {name} " in finished.stdout


# --- the form


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        ("shards --json", Form.JSON), ("shards -o json", Form.JSON), ("shards -ojson", Form.JSON),
        ("shards --output=yaml", Form.YAML), ("shards --output yaml", Form.YAML), ("shards -o", Form.TABLE),
        ("shards -o wide", Form.TABLE), ("shards -o nonsense", Form.TABLE), ("shards", Form.TABLE),
        ("read g -- --json", Form.TABLE),
    ],
)
def test_the_form_is_known_before_the_command_line_is_understood(arguments: str, form: Form):
    assert asked_for(arguments.split()) is form


def test_the_same_document_as_json_and_yaml(on: Cli):
    document = on("shards", "--json").document
    assert on("shards", "-o", "json").document == document
    assert yaml.safe_load(on("shards", "-o", "yaml").out) == document
    assert on("shards", "-o", "wide").out == on("shards").out
    assert on("read", "orders", "-o", "json").document == []
    assert on("read", "orders", "-o", "yaml").code == 2


def test_every_command_with_json_takes_the_forms():
    """`demo` tells a story; every other result is a document too."""

    def leaves(name: str, command: object) -> Iterator[tuple[str, set[str]]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, {option for parameter in command.params for option in parameter.opts}  # type: ignore
        for below, each in (inner or {}).items():
            yield from leaves(f"{name} {below}", each)

    seen = [each for name, room in ROOMS.items() for each in leaves(name, command_of(name, room))]
    assert len(seen) > 30
    for name, options in seen:
        assert name == "demo" or {"--json", "-o", "--output"} <= options, name


def test_no_row_is_folded_or_cut_in_a_pipe_whatever_the_width_asked_for(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "40")
    cell = "many words in one line " * 40
    output.write(Form.TABLE, {}, lambda: output.table(["NAME", "MESSAGE"], [["one", cell], ["two", "x" * 500]]))
    output.show_beside(Padding(output.table(["NAME"], [[cell]]), (0, 0, 0, 2)))
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert len(captured.err.splitlines()) == 2
    assert not [line for line in (captured.out + captured.err).splitlines() if line.endswith(" ")]


# --- one document


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",), ("read",), ("read", "g", "--from", "now"), ("dev", "up", "--nodes", "0"), ("shards", "--what"),
        ("get", "teapot"), ("dev", "nonsense"),
    ],
)
def test_wrong_usage_is_one_document_too(cli: Cli, arguments: tuple[str, ...], tmp_path: Path):
    result = cli(*arguments, "--json")
    assert result.code == 2
    assert result.document["error"] == "USAGE"
    assert result.document["message"]
    assert yaml.safe_load(cli(*arguments, "-o", "yaml").out)["error"] == "USAGE"
    assert "error:" in result.err


def test_a_ctrl_c_is_one_document_too():
    """The address takes connections and says nothing."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [*TIDEMARK, "shards", "--json", "--cluster", f"127.0.0.1:{silent.getsockname()[1]}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        silent.settimeout(60)
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        connection.close()
    assert process.returncode == 130, err
    assert json.loads(out)["error"] == "INTERRUPTED"


def test_a_read_that_fails_midway_is_one_document(on: Cli, fake: FakeInAThread, tmp_path: Path):
    file = tmp_path / "lines"
    file.write_text("one\ntwo\n")
    assert on("append", "orders", str(file)).code == 0
    fake.cluster.groups["orders"][0].leader = ""
    result = on("read", "orders", "--json", "--until", "5", "--timeout", "1", "--mode", "leader")
    assert result.code == 3
    *records, last = result.document if isinstance(result.document, list) else [result.document]
    assert last["error"]
    assert all("value" in each for each in records)


def test_a_bug_is_one_line_and_one_document(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from tidemark_cli import views

    def broken(*_: object) -> str:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(views, "kind_of", broken)
    result = cli("get", "shards", "--json", "--dir", str(tmp_path))
    assert (result.code, result.document["error"]) == (1, "BUG")
    assert "Traceback" not in result.err
    monkeypatch.setenv(running.TRACEBACK_VARIABLE, "1")
    assert "Traceback" in cli("get", "shards", "--dir", str(tmp_path)).err


# --- no traceback


@pytest.mark.parametrize("start", ["9" * 5000, "1" * 20, "9223372036854775807"])
def test_an_offset_that_no_log_has_is_refused(on: Cli, start: str):
    for option in ("--from", "--until"):
        result = on("read", "orders", option, start)
        assert result.code == 2
        assert len(result.err) < 2000


@pytest.mark.parametrize("time", ["0001-01-01", "0001-01-01T00:00:00+14:00", "1969-12-31"])
def test_a_time_before_all_clocks_is_the_beginning(on: Cli, tmp_path: Path, time: str):
    file = tmp_path / "lines"
    file.write_text("one\n")
    assert on("append", "orders", str(file)).code == 0
    result = on("read", "orders", "--from", time, "--json")
    assert result.code in (0, 2), result.err
    assert result.code == 2 or [record["value"] for record in result.document] == ["one"]


@pytest.mark.parametrize("time", ["9999-12-31", "9999-12-31T23:59:59-14:00"])
def test_a_time_behind_all_clocks_is_the_end_or_refused(on: Cli, time: str):
    assert on("read", "orders", "--from", time, "--json").code in (0, 2)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e300"])
def test_a_timeout_without_an_end_is_refused(on: Cli, seconds: str):
    for command in ("limbo", "read", "tail", "append", "subscriptions list", "explain read"):
        assert on(*command.split(), "orders", "--timeout", seconds).code == 2, command


@pytest.mark.parametrize("timeout_s", [float("inf"), float("nan"), 0, -1, 10**400, "3", True])
async def test_the_library_refuses_it_too(timeout_s: float):
    with pytest.raises(tidemark.errors.InvalidArgument, match="timeout_s"):
        await tidemark.connect("127.0.0.1:1", timeout_s=timeout_s)


def test_manifests_that_are_no_text_are_refused(tmp_path: Path, cli: Cli):
    file = tmp_path / "manifest"
    file.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in cli("apply", "-f", str(file), "--dir", str(tmp_path)).err
    finished = run("apply", "-f", "-", "--dir", str(tmp_path), redirect=f"< {file}")
    assert finished.returncode == 1
    assert "standard input is not UTF-8 text" in finished.stderr
    file.write_bytes(b"#" * (2 << 20))
    assert "has more than 1024 KiB" in cli("apply", "-f", str(file), "--dir", str(tmp_path)).err


@pytest.mark.parametrize(
    ("arguments", "redirect", "code", "said"),
    [
        (("--version",), ">&-", 1, "standard output is closed"),
        (("apply", "-f", "-"), "<&-", 1, "cannot read standard input: it is closed"),
        (("--version",), "2>&-", 0, ""),
        (("nonsense",), "2>&-", 2, ""),
        (("--version",), "> /dev/full", 1, "No space left on device"),
    ],
)
def test_closed_and_full_streams_are_errors(
    arguments: tuple[str, ...], redirect: str, code: int, said: str, tmp_path: Path
):
    finished = run(*arguments, redirect=redirect, cwd=tmp_path)
    assert finished.returncode == code, finished.stderr
    assert said in finished.stderr
    assert "Traceback" not in finished.stderr
    assert "Exception" not in finished.stderr


def test_a_reader_that_has_enough_is_no_error(fake: FakeInAThread):
    reading, writing = os.pipe()
    os.close(reading)
    command = [*TIDEMARK, "shards", "--cluster", fake.address]
    finished = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (finished.returncode, finished.stderr) == (0, "")
