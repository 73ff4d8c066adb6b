"""Programs of `tidemark.sync` that leave an iterator open end at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.fake_in_a_thread import FakeInAThread
from tests.waiting import PATIENCE_S

PROGRAM = """
import sys, tidemark.sync
client = tidemark.sync.connect(sys.argv[1])
client.appender("orders").append(b"v")
client.documents("settings").put(b"k", b"v")
held = [
    iter(client.read("orders", until=None)),
    client.read("orders", until=None, subscription="name").batches(),
    iter(client.documents("settings").scan()),
    iter(client.changes("settings")),
    client.changes("settings", consumer="name").snapshots(),
]
for items in held:
    next(items)
print("read")
"""
FAILING = PROGRAM + "raise OSError('left')"


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeInAThread]:
    started = FakeInAThread()

    async def add() -> None:
        started.cluster.add_documents("settings", 1)

    started.call(add())
    yield started
    started.stop()


@pytest.mark.parametrize(("program", "code"), [(PROGRAM, 0), (FAILING, 1)])
def test_a_program_that_holds_iterators_ends(fake: FakeInAThread, program: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program, fake.address], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.stdout, ended.returncode) == ("read\n", code), ended.stderr
    assert ended.stderr.endswith("OSError: left\n") if code else not ended.stderr
