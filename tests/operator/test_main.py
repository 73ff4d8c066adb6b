"""Flags of the operator process: wrong ones are named, TLS for etcd is used."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidemark_operator.etcd import EtcdStore, Saved, StoreUnavailable
from tidemark_operator.etcd_process import etcd_command, find_etcd
from tidemark_operator.local_state import free_ports
from tidemark_operator.main import parse_flags, read_tls

TLS = Path(__file__).parent / "tls"
CERTIFICATE, KEY = str(TLS / "tls.crt"), str(TLS / "tls.key")  # its own CA, for 127.0.0.1, made for this test alone
FLAGS = ["--cluster", "dev", "--etcd", "https://127.0.0.1:1"]


@pytest.mark.parametrize("wrong", [
    ["--listen", "nowhere"], ["--listen", "127.0.0.1:99999"], ["--lease-ttl", "0"], ["--etcd-cert", "c.pem"]])
def test_a_wrong_flag_is_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags([*FLAGS, *wrong])
    assert wrong[0] in capsys.readouterr().err


def test_https_without_a_ca_says_which_flag_is_missing() -> None:
    assert read_tls(parse_flags(FLAGS)) is None
    with pytest.raises(ValueError, match="--etcd-ca"):
        EtcdStore(["https://127.0.0.1:1"])


def test_a_missing_file_is_named() -> None:
    with pytest.raises(OSError, match="no-such"):
        read_tls(parse_flags([*FLAGS, "--etcd-ca", "no-such.pem"]))


@pytest.fixture
async def secure_etcd(tmp_path: Path) -> AsyncIterator[str]:
    """An etcd that takes TLS with a client certificate only."""
    port, peer_port = free_ports(2)
    binary = find_etcd()
    assert binary is not None
    url = f"https://127.0.0.1:{port}"
    command = [
        part.replace(f"http://127.0.0.1:{port}", url)
        for part in etcd_command(binary, tmp_path / "etcd", port, peer_port)
    ]
    command += [
        "--cert-file", CERTIFICATE, "--key-file", KEY,
        "--trusted-ca-file", CERTIFICATE, "--client-cert-auth",
    ]
    with (tmp_path / "etcd.log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as child:
        yield url
        child.kill()


async def test_etcd_is_reached_over_mutual_tls(secure_etcd: str) -> None:
    flags = ["--cluster", "dev", "--etcd", secure_etcd, "--etcd-ca", CERTIFICATE]
    mutual = [*flags, "--etcd-cert", CERTIFICATE, "--etcd-key", KEY]
    known = EtcdStore([secure_etcd], tls=read_tls(parse_flags(mutual)))
    async with asyncio.timeout(20):
        while not isinstance(await known.put("/a", b"1", expected=0), Saved):
            pass
    stranger = EtcdStore([secure_etcd], tls=read_tls(parse_flags(flags)), timeout_ms=500)
    with pytest.raises(StoreUnavailable):
        await stranger.get("/a")
    await known.close()
    await stranger.close()
