"""Flags of the operator process: wrong ones are named, TLS for etcd is used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from tidemark_operator import main
from tidemark_operator.etcd import EtcdStore, StoreUnavailable
from tidemark_operator.etcd_process import ETCD_VARIABLE, etcd_command, find_etcd
from tidemark_operator.local_state import free_ports
from tidemark_operator.main import parse_flags, read_tls

from tests.kube.certificates import Authority

FLAGS = ["--cluster", "dev", "--etcd", "https://127.0.0.1:1"]


@pytest.mark.parametrize("wrong", [
    ["--listen", "nowhere"], ["--listen", "127.0.0.1:99999"], ["--lease-ttl", "0"], ["--etcd-cert", "c.pem"]])
def test_a_wrong_flag_is_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags([*FLAGS, *wrong])
    assert wrong[0] in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "said"), [
    (["--kubernetes", "--etcd", "http://127.0.0.1:1"], "--kubernetes takes clusters"),
    (["--kubernetes", "--cluster", "dev"], "--kubernetes takes clusters"),
    (["--cluster", "dev"], "--etcd, --cluster (or --kubernetes)"),
    ([], "--etcd, --cluster (or --kubernetes)"),
    (["--kubernetes", "--http-listen", "8080"], "--http-listen"),
    (["--kubernetes", "--all-namespaces", "--namespace", "data"], "exclude each other"),
])
def test_clusters_come_from_flags_or_from_kubernetes(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_flags(flags)
    assert said in capsys.readouterr().err


def test_kubeconfig_is_what_the_flag_says_else_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "config-of-the-environment")
    assert parse_flags(["--kubernetes"]).kubeconfig == Path("config-of-the-environment")
    assert parse_flags(["--kubernetes", "--kubeconfig=mine"]).kubeconfig == Path("mine")
    monkeypatch.setenv("KUBECONFIG", "")
    assert parse_flags(["--kubernetes"]).kubeconfig is None


class Built(Exception):
    """The operator is made, and goes no further."""


@pytest.mark.parametrize(("more", "prefix"), [([], "/tidemark/default/dev"), (["--key-prefix", "/a/b"], "/a/b")])
async def test_an_operator_is_made_of_its_flags(
    more: list[str], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def service(*arguments: object, **options: object) -> None:
        assert arguments == (["http://127.0.0.1:1"], prefix, "dev")
        assert (options["lease_ttl_s"], options["nodes_directory"]) == (7, Path("nodes"))
        raise Built

    monkeypatch.setattr(main, "OperatorService", service)
    monkeypatch.setattr(main, "_end_on_signals_and_bugs", lambda ended: None)
    flags = ["--cluster", "dev", "--etcd", "http://127.0.0.1:1", "--lease-ttl", "7", "--nodes-dir", "nodes", *more]
    with pytest.raises(Built):
        await main.run(parse_flags(flags))


@pytest.mark.servers
@pytest.mark.parametrize(("flags", "said"), [
    (["--check", "--all-namespaces"], "no way to the API server"),
    (["--kubeconfig=/nowhere", "--namespace=data"], "no way to the API server"),
    (["--namespace=data"], "no way to the API server"),
    ([], "--namespace is needed outside of a pod"),
])
def test_an_operator_that_cannot_reach_kubernetes_says_why(flags: list[str], said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tidemark_operator", "--kubernetes", *flags], capture_output=True, text=True, timeout=60,
        env={name: text for name, text in os.environ.items() if name != "KUBECONFIG"}, check=False)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_https_without_a_ca_says_which_flag_is_missing() -> None:
    assert read_tls(parse_flags(FLAGS)) is None
    with pytest.raises(ValueError, match="--etcd-ca"):
        EtcdStore(["https://127.0.0.1:1"])


def test_a_missing_file_is_named() -> None:
    with pytest.raises(OSError, match="no-such"):
        read_tls(parse_flags([*FLAGS, "--etcd-ca", "no-such.pem"]))


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.servers
def test_the_variable_names_the_etcd_before_the_path_and_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = script(tmp_path / "etcd-of-mine", "echo etcd Version: 3.6.16")
    script(tmp_path / "etcd", "echo etcd Version: 3.5.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(ETCD_VARIABLE, str(given))
    binary = find_etcd()
    assert binary is not None and binary.describe() == f"etcd 3.6.16 from TIDEMARK_ETCD ({given})"

    monkeypatch.setenv(ETCD_VARIABLE, "")
    binary = find_etcd()
    assert binary is not None and "etcd 3.5.1 from PATH" in binary.describe()
    assert "withdrawn release, for trials only" in binary.describe()


def test_a_variable_that_names_no_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ETCD_VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(OSError, match=r"TIDEMARK_ETCD names .*missing"):
        find_etcd()


@pytest.fixture
async def secure_etcd(tmp_path: Path) -> AsyncIterator[tuple[str, Path]]:
    """An etcd that takes TLS only: its URL and the certificate of who signed its own."""
    binary, (port, peer_port) = find_etcd(), free_ports(2)
    assert binary is not None
    url = f"https://127.0.0.1:{port}"
    command = etcd_command(binary, tmp_path / "etcd", port, peer_port)
    authority = Authority(tmp_path / "pki")
    # Not etcd's own --auto-tls: it makes P-521 keys, which gRPC does not offer to verify.
    certificate, key = authority.issue("etcd", "etcd", hosts=["127.0.0.1"])
    command = [part.replace(f"http://127.0.0.1:{port}", url) for part in command]
    command += ["--cert-file", str(certificate), "--key-file", str(key)]
    with (tmp_path / "etcd.log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as child:
        yield url, authority.certificate_file
        child.kill()


async def test_etcd_is_reached_over_tls(secure_etcd: tuple[str, Path]) -> None:
    url, certificate = secure_etcd
    async with asyncio.timeout(20):
        store = EtcdStore([url], tls=read_tls(parse_flags([*FLAGS, "--etcd-ca", str(certificate)])))
        while not store.reachable:
            with suppress(StoreUnavailable):
                await store.get("/a")
    await store.close()
