"""`tidemark sinks`: how far jobs that write in batches have come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tidemark.sync
from cli_harness import Cli
from tidemark import SinkEnd

from tests.fake_in_a_thread import FakeInAThread


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    started = FakeInAThread(shards=2, nodes=1)
    yield started
    started.stop()


@pytest.fixture
def on_fake(fake: FakeInAThread, cli: Cli) -> Cli:
    return lambda *arguments: cli(*arguments, "--cluster", fake.address)


def test_sinks_are_listed_and_deleted(fake: FakeInAThread, on_fake: Cli) -> None:
    assert "no job has written to orders in batches" in on_fake("sinks", "list", "orders").out
    with tidemark.sync.connect(fake.address) as client:
        sinks = client.sinks("orders")
        for part in range(3):
            sinks.join("nightly", 41, part)
        sinks.mark("nightly", 41, 3, [SinkEnd(0, 900, 1_200, 7), SinkEnd(1, 800, 1_000, 8)])
        sinks.join("stream", 0, 2)
    lines = [line.split() for line in on_fake("sinks", "list", "orders").out.splitlines()]
    assert lines == [
        ["SINK", "COMPLETE", "PARTS", "ROWS", "OPEN", "JOINED", "USED", "LEFT"],
        ["nightly", "41", "3", "2,200", "-", "-", "0.0s", "30d"],
        ["stream", "-", "-", "-", "0", "1", "0.0s", "30d"]]
    document = on_fake("sinks", "list", "orders", "--json").document
    assert [(each["name"], each["marked"], each["joined"]) for each in document["sinks"]] == [
        ("nightly", 41, 0), ("stream", -1, 1)]
    assert document["sinks"][0]["ends"][1] == {"batch": 41, "shard": 1, "last": 800, "rows": 1000, "checksum": 8}

    assert on_fake("sinks", "delete", "orders", "stream", "--json").document == {"group": "orders", "sink": "stream"}
    assert on_fake("sinks", "delete", "orders", "nightly").out == "sink nightly deleted\n"
    gone = on_fake("sinks", "delete", "orders", "nightly")
    assert (gone.code, "orders has no sink nightly" in gone.err) == (1, True)
    assert on_fake("sinks", "delete", "orders", "").code == 2
    assert on_fake("sinks", "list", "nothing").code != 0
