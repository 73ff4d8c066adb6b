from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidemark
from cli_harness import Cli, holds
from tidemark_cli import output
from tidemark_cli.commands import run as run_cli
from tidemark_operator import local

from tests.ran import Ran
from tests.run.janitor import kept
from tests.waiting import wait_until

PLACES = [f"region=eu,zone={zone},rack=r1" for zone in "abcd"]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lines be 200 columns long, wherever the tests run.

    A console keeps the COLUMNS of the moment it was made in, and some programs that run tests set that variable.
    """
    monkeypatch.setenv("COLUMNS", "200")
    for console in (output.stdout, output.stderr):
        monkeypatch.setattr(console, "width", 200)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line in this process."""

    def call(*arguments: str) -> Ran:
        capfd.readouterr()
        code = run_cli(list(arguments))
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State folder of a local cluster of four nodes, each in a zone of its own."""
    directory = tmp_path_factory.mktemp("cluster")
    try:
        tidemark.run(local.up(directory, nodes=4, locations=PLACES, cluster="dev"))
        with kept(directory):
            yield directory
    finally:
        tidemark.run(local.down(directory, wipe=True))


@pytest.fixture
def on(state: Path, cli: Cli) -> Cli:
    """Run a command line on the local cluster."""
    return lambda *arguments: cli(*arguments, "--dir", str(state))


@pytest.fixture
def group(on: Cli, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A log group of its own for the test: two shards, three copies, led and fully replicated."""
    wait_until(lambda: holds(on, "cluster", "dev", "MetadataStoreReachable"), "the operator says that etcd answers")
    name = "g" + str(abs(hash(request.node.nodeid)) % 10**10)
    manifest = {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": "dev"}, "shards": 2,
            "replication": {"factor": 3, "defaultAck": "Quorum", "spread": "Node"},
        },
    }
    file = tmp_path / "group.json"
    file.write_text(json.dumps(manifest))
    result = on("apply", "-f", str(file))
    assert result.code == 0, result.err
    wait_until(lambda: holds(on, "loggroup", name, "Ready", "FullyReplicated"), f"{name} is led and fully replicated")
    return name
