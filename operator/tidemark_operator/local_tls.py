"""Certificates of a local cluster, in `tls/` of its directory: who holds one, and where it is.

The operator keeps them (`certificate_tending`); what has to exist before a process starts is made here.
Stays out: making and replacing certificates (`certificates`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from tidemark_wire.identity import Identity, Kind
from tidemark_wire.tls import TlsSettings, read_material

from .certificates.files import CertificateFiles
from .certificates.keeper import ensure, now_utc, request_rotation, rotated
from .certificates.rotation import Policy
from .certificates.subject import Subject
from .etcd_access import TlsFiles
from .local_state import LocalRuntimeError, State
from .model import OPERATOR_NAME

LOCAL_ADMIN = "local"
"""The admin whose certificate the command line uses by itself."""

ETCD = "etcd"
ETCD_POLICY = Policy(certificate=timedelta(days=3650), authority=timedelta(days=7300))
"""etcd reads the CA it trusts when it starts and never again, so it has one of its own that lasts."""

ROTATION_TIMEOUT_S = 120.0
LOOK_S = 0.2


class LocalCertificates:
    """The certificates of the local cluster in `directory`."""

    def __init__(self, directory: Path, cluster: str) -> None:
        self.files = CertificateFiles(directory / "tls", cluster)
        self._etcd_files = CertificateFiles(directory / "tls" / ETCD, cluster)
        self._cluster = cluster

    def identity(self, kind: Kind, name: str) -> Identity:
        return Identity(self._cluster, kind, name)

    def folder(self, kind: Kind, name: str) -> Path:
        """Return where somebody's tls.crt, tls.key and ca.crt are."""
        return self.files.folder(self.identity(kind, name))

    def admin(self) -> TlsSettings:
        """Return what the command line uses by itself."""
        return TlsSettings.of_directory(self.folder(Kind.ADMIN, LOCAL_ADMIN))

    def etcd(self) -> TlsSettings:
        """Return what etcd serves with."""
        return TlsSettings.of_directory(self._etcd_files.folder(self.identity(Kind.NODE, ETCD)))

    def etcd_client(self) -> TlsSettings:
        """Return what the operator speaks to etcd with."""
        return TlsSettings.of_directory(self._etcd_files.folder(self.identity(Kind.OPERATOR, OPERATOR_NAME)))

    def prepare(self, policy: Policy, nodes: Iterable[str]) -> None:
        """Make sure that etcd, the operator, these nodes and the local admin hold certificates that last a while."""
        subjects = [self._server(Kind.OPERATOR, OPERATOR_NAME), Subject(self.identity(Kind.ADMIN, LOCAL_ADMIN))]
        subjects += [self._server(Kind.NODE, node) for node in nodes]
        ensure(self.files, policy, now_utc(), subjects)
        ensure(self._etcd_files, ETCD_POLICY, now_utc(), [
            self._server(Kind.NODE, ETCD), Subject(self.identity(Kind.OPERATOR, OPERATOR_NAME))])

    def issue(self, policy: Policy, kind: Kind, name: str) -> Path:
        """Make sure that a client or an admin holds a certificate; return where its files are."""
        folder = self.folder(kind, name)
        ensure(self.files, policy, now_utc(), [Subject(self.identity(kind, name))])
        return folder

    async def rotate(self) -> None:
        """Ask the operator for a new CA and new certificates, and wait until nothing of the old CA is left."""
        retired = request_rotation(self.files)
        deadline = time.monotonic() + ROTATION_TIMEOUT_S
        while not await asyncio.to_thread(rotated, self.files, retired):
            if time.monotonic() > deadline:
                raise LocalRuntimeError(
                    f"the rotation has not ended after {ROTATION_TIMEOUT_S:.0f} s",
                    "It goes on while the operator runs and every node answers; see its log and `tidemark dev status`.")
            await asyncio.sleep(LOOK_S)

    def _server(self, kind: Kind, name: str) -> Subject:
        """Return who serves on loopback; any server answers to the name of the cluster too."""
        return Subject(self.identity(kind, name), (name, self._cluster, "localhost"), ("127.0.0.1",))


def etcd_files(directory: Path, state: State) -> TlsFiles | None:
    """Return what to speak to this cluster's etcd with, None where it is in the clear."""
    if not state.tls:
        return None
    material = read_material(LocalCertificates(directory, state.cluster).etcd_client())
    return TlsFiles(material.ca, material.certificate, material.key)


def tls_flags(directory: Path, state: State, kind: Kind, name: str) -> list[str]:
    """Return the flags that make a process of this cluster use its certificate, none without TLS."""
    if not state.tls:
        return []
    return ["--tls-dir", str(LocalCertificates(directory, state.cluster).folder(kind, name))]
