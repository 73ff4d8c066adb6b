"""append from pipes, files and broken files: what was appended is always said, and the --skip to go on with."""

from __future__ import annotations

import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_harness import Cli
from tidemark_cli import sources
from tidemark_core.base.entry import Kind

from tests.fake_in_a_thread import FakeInAThread
from tests.waiting import wait_until

DEADLINE_S = 10.0
"""For a Ctrl-C: a second is the promise, the rest is for a machine that does other work."""


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    started = FakeInAThread()
    yield started
    started.stop()


@pytest.fixture
def on(fake: FakeInAThread, cli: Cli) -> Cli:
    """Run a command line on the fake cluster."""
    return lambda *arguments: cli(*arguments, "--cluster", fake.address)


def command(fake: FakeInAThread, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tidemark_cli", "append", "orders", *arguments, "--cluster", fake.address]


def appended(fake: FakeInAThread) -> int:
    return sum(entry.count for entry in fake.shard().entries if entry.kind is Kind.DATA)


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_are_appended_while_the_source_is_open(fake: FakeInAThread, terminal: bool):
    """A pipe or a terminal that gives a line now and then, and stays open after Ctrl-C."""
    ours, theirs = pty.openpty() if terminal else tuple(reversed(os.pipe()))
    process = subprocess.Popen(
        command(fake, "--json"), stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        os.write(ours, b"one\ntwo\n")
        wait_until(lambda: appended(fake) == 2, "the first lines are appended")
        os.write(ours, b"three\nno end")
        wait_until(lambda: appended(fake) == 3, "the third line is appended")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)
    assert time.monotonic() - began < DEADLINE_S
    assert process.returncode == 130, err
    document = json.loads(out)
    assert (document["acked"], document["resume_skip"], document["complete"]) == (3, 3, False)
    assert document["error"] == "INTERRUPTED"
    assert "3 lines appended; go on with --skip 3" in err


def test_a_ctrl_c_ends_though_no_leader_answers(fake: FakeInAThread):
    fake.shard().deaf = True
    process = subprocess.Popen(
        command(fake, "--json"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    try:
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        wait_until(lambda: fake.shard().sent, "the lines were sent")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
    finally:
        process.kill()
    document = json.loads(out)
    assert (document["acked"], document["resume_skip"]) == (0, 0)
    assert document["outcomes"]["unknown"] == 2
    assert b"go on with --skip 0 (2 lines behind that had no answer, and may be in the log)" in err


def test_an_answer_that_ends_the_command_does_not_wait_for_the_next_line(fake: FakeInAThread):
    shard = fake.shard()
    shard.limbo = True

    async def script() -> None:
        await fake.until(lambda: shard.undecided)
        shard.time_out()

    scripted = fake.script(script())
    process = subprocess.Popen(
        command(fake, "--json", "--on-quorum-timeout", "raise"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    try:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        scripted.result(30)
        assert process.wait(40) == 3
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["error"] == "QUORUM_TIMEOUT"
    finally:
        process.kill()


LINES = b"".join(b'{"id":"%d"}\n' % number for number in range(50))
PACKED = gzip.compress(LINES)
CORRUPT = gzip.compress(LINES, mtime=0)[:-8] + b"\0" * 8


@pytest.mark.parametrize(
    ("content", "name", "count", "said"),
    [
        (gzip.compress(os.urandom(300_000).hex(":", 50).encode().replace(b":", b"\n"))[:-40_000], "cut.gz", None,
         "its end is missing"),
        (CORRUPT, "crc.gz", 50, "no intact gzip file"),
        (PACKED + b"rubbish that is no member", "tail.gz", 50, "no intact gzip file"),
        (LINES + b"{not json}\n", "bad.ndjson", 50, "line 51: "),
        (LINES + b'{"id":"\\ud800"}\n', "surrogate.ndjson", 50, "line 51: the field 'id' holds half of a surrogate"),
        (LINES + b'{"id":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "deep.ndjson", 50, "line 51: it is nested"),
    ],
)
def test_a_source_that_fails_says_what_was_appended(
    on: Cli, fake: FakeInAThread, tmp_path: Path, content: bytes, name: str, count: int | None, said: str
):
    file = tmp_path / name
    file.write_bytes(content)
    arguments = ("--key-field", "id") if count is not None else ()
    result = on("append", "orders", str(file), *arguments, "--json")
    assert result.code == 1, result.err
    assert said in " ".join(result.err.split())
    done = result.document["acked"]
    assert done == appended(fake)
    assert count is None or done == count
    assert result.document["resume_skip"] == done > 0
    assert f"{done} lines appended; go on with --skip {done}" in result.err
    assert "Traceback" not in result.err


def test_a_read_error_says_what_was_appended(
    on: Cli, fake: FakeInAThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "lines"
    file.write_bytes(LINES)
    real, reads = os.read, []

    def read(descriptor: int, count: int) -> bytes:
        reads.append(descriptor)
        if len(reads) > 1:
            raise OSError(5, "Input/output error")
        return real(descriptor, count)

    monkeypatch.setattr(sources.os, "read", read)
    result = on("append", "orders", str(file), "--json")
    monkeypatch.undo()
    assert result.code == 1
    assert f"cannot read {file}: Input/output error" in result.err
    assert "50 lines appended; go on with --skip 50" in result.err
    assert appended(fake) == 50


def test_gzip_members_and_filled_up_ends_are_read(on: Cli, fake: FakeInAThread, tmp_path: Path):
    file = tmp_path / "lines.gz"
    file.write_bytes(gzip.compress(b"one\ntw") + gzip.compress(b"o\nthree") + b"\0" * 512)
    assert on("append", "orders", str(file)).code == 0
    assert [record["value"] for record in on("read", "orders", "--json").document] == ["one", "two", "three"]


def test_an_endless_line_is_refused(on: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "LINE_BYTES_MAX", 1 << 20)
    file = tmp_path / "lines"
    file.write_bytes(b"one\n" + b"x" * (3 << 20))
    result = on("append", "orders", str(file))
    assert result.code == 1
    assert "a line is longer than 1 MiB" in result.err
    assert "go on with --skip 1" in result.err


def test_what_is_left_out_of_lines_is_said(on: Cli, tmp_path: Path):
    file = tmp_path / "lines"
    file.write_bytes(b"one\r\n\r\n\ntwo\r\r\nlast")
    result = on("append", "orders", str(file), "--json")
    assert result.code == 0
    assert (result.document["empty_lines"], result.document["carriage_returns"]) == (2, 3)
    assert "2 empty lines, the carriage return at the end of 3 lines" in result.err
    assert [record["value"] for record in on("read", "orders", "--json").document] == ["one", "two\r", "last"]


def test_a_null_key_is_no_key(on: Cli, tmp_path: Path):
    file = tmp_path / "lines"
    file.write_text('{"id":null}\n{"id":"a"}\n{"id":7}\n')
    assert on("append", "orders", str(file), "--key-field", "id").code == 0
    assert {record["key"] for record in on("read", "orders", "--json").document} == {None, "a", "7"}


def test_a_closed_standard_input_is_an_error(fake: FakeInAThread):
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *command(fake)]
    finished = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 1
    assert "cannot read standard input: it is closed" in finished.stderr
    assert "Traceback" not in finished.stderr
