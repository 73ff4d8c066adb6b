"""Peers of benchmarks: skipped with a reason where they cannot be built, and a load that fails is no result."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from bench import etcd_cluster, etcd_peer, jetstream, nats_cluster, peers
from bench.context import Context
from bench.processes import WorkerFailed
from tests.kube import binaries


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("benchmark", [jetstream, etcd_peer], ids=lambda module: module.__name__)
def test_without_go_a_peer_is_left_out_with_the_reason(
    benchmark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    outcome = benchmark.run(Context(tmp_path, quick=True))  # type: ignore[attr-defined]
    assert "put Go 1.26 or newer on PATH" in outcome.absent
    assert not outcome.figures
    assert not outcome.failure


def test_a_load_gives_its_result(tmp_path: Path) -> None:
    echo = program(tmp_path / "load", "import sys; print(sys.argv[1])")
    assert peers.load(echo, way="fast", seconds=2) == {"way": "fast", "seconds": 2}


def test_a_load_that_fails_is_no_result(tmp_path: Path) -> None:
    broken = program(tmp_path / "load", "import sys; print('{}'); sys.exit(3)")
    with pytest.raises(WorkerFailed, match="load ended with exit code 3"):
        peers.load(broken)


def test_servers_run_for_as_long_as_the_block(tmp_path: Path) -> None:
    serving = program(
        tmp_path / "serve", "import socket, sys\nserver = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "while True: server.accept()")
    port, = peers.free_ports(1)
    with peers.servers({port: (str(serving), str(port))}, tmp_path):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_server_that_does_not_listen_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "START_SECONDS", 0.2)
    port, = peers.free_ports(1)
    with pytest.raises(TimeoutError, match=str(port)), peers.servers({port: ("true",)}, tmp_path):
        pass


def test_members_of_etcd_know_each_other(tmp_path: Path) -> None:
    commands = etcd_cluster.commands(Path("etcd"), tmp_path, [1, 2, 3], [4, 5, 6])
    assert list(commands) == [1, 2, 3]
    everyone = "etcd-1=http://127.0.0.1:4,etcd-2=http://127.0.0.1:5,etcd-3=http://127.0.0.1:6"
    for command in commands.values():
        assert command[command.index("--initial-cluster") + 1] == everyone
        assert "--unsafe-no-fsync" not in command
    assert len({command[command.index("--data-dir") + 1] for command in commands.values()}) == 3


@pytest.mark.parametrize("sync", ["2m", "always"])
def test_each_server_of_jetstream_is_told_when_to_sync(
    sync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = program(
        tmp_path / "nats-server", "import re, socket, sys\n"
        "port = re.search(r'listen: \"127.0.0.1:(\\d+)\"', open(sys.argv[2]).read())[1]\n"
        "server = socket.create_server(('127.0.0.1', int(port)))\nwhile True: server.accept()")
    with nats_cluster.running(listening, tmp_path, sync) as ports:
        assert sorted(ports) == ["nats-1", "nats-2", "nats-3"]
        assert len(set(ports.values())) == 3
        assert all(f"sync_interval: {sync} " in (tmp_path / f"{name}.conf").read_text() for name in ports)


def test_a_peer_of_another_version_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    program(tmp_path / "etcd", "")
    assert binaries.find("etcd") == tmp_path / "etcd"
    assert binaries.find("etcd", binaries.PEERS) is None


def test_a_load_program_that_changes_is_built_again(tmp_path: Path) -> None:
    folder = tmp_path / "go"
    (folder / "load").mkdir(parents=True)
    for name in ("go.mod", "go.sum"):
        (folder / name).write_bytes((binaries.PEERS / name).read_bytes())
    source = folder / "load" / "main.go"
    source.write_text("package main\n")
    before = binaries.cache_directory(folder)
    source.write_text("package main // changed\n")
    assert binaries.cache_directory(folder) != before
