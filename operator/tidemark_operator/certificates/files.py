"""Certificates in a directory: `authorities/ID.crt|.key`, and per holder `KIND/NAME/` with tls.crt, tls.key, ca.crt.

A holder's three files change in one step, as those of a mounted Kubernetes Secret do: they are links through `..data`
into a folder that is never written again.  Keys are for their owner's eyes only.
Stays out: what to write (`rotation`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidemark_wire.identity import NAME, Identity, Kind
from tidemark_wire.tls import CA_FILE, CERT_FILE, KEY_FILE

from .authority import Authority, InvalidCertificate, Leaf, ids_in, read_authority, read_leaf
from .store import Held

_DATA = "..data"


class CertificateFiles:
    """The certificates of one cluster below `directory`."""

    adopts = False

    def __init__(self, directory: Path, cluster: str) -> None:
        self.directory = directory
        self.cluster = cluster
        self._authorities = directory / "authorities"

    def folder(self, identity: Identity) -> Path:
        """Return where a holder's files are."""
        if not NAME.fullmatch(identity.name):
            raise ValueError(f"{identity.name!r} is not a name: 1 to 63 letters, digits, dots, dashes or underscores")
        return self.directory / identity.kind / identity.name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others, who may be other processes, from changing anything meanwhile."""
        _make(self.directory)
        with (self.directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # --- authorities ----------------------------------------------------------------------------------------------

    def authorities(self) -> list[Authority]:
        """Return the CAs, oldest first.  Raises InvalidCertificate."""
        found = []
        for path in self._authorities.glob("*.crt"):
            key = path.with_suffix(".key")
            if not key.exists():
                continue  # it is being dropped
            found.append(read_authority(path.read_bytes(), key.read_bytes()))
        return sorted(found, key=lambda authority: (authority.created, self._mark(authority.id)))

    def _mark(self, authority: str) -> int:
        """Tell apart CAs that were made in one second."""
        return (self._authorities / f"{authority}.crt").stat().st_mtime_ns

    def retiring(self) -> frozenset[str]:
        """Return the ids of the CAs whose replacement was asked for."""
        return frozenset(path.stem for path in self._authorities.glob("*.retiring"))

    def put_authority(self, authority: Authority) -> None:
        _make(self._authorities)
        _write(self._authorities / f"{authority.id}.key", authority.key)
        _write(self._authorities / f"{authority.id}.crt", authority.certificate)

    def drop_authority(self, authority: str) -> None:
        for suffix in ("key", "crt", "retiring"):
            (self._authorities / f"{authority}.{suffix}").unlink(missing_ok=True)

    def retire(self, authority: str) -> None:
        """Note that a CA is to be replaced."""
        _write(self._authorities / f"{authority}.retiring", b"")

    # --- holders --------------------------------------------------------------------------------------------------

    def holders(self) -> dict[Identity, Held]:
        """Return who holds what.  Raises InvalidCertificate."""
        found = {}
        for kind in Kind:
            for folder in sorted((self.directory / kind).glob("*")):
                identity = Identity(self.cluster, kind, folder.name)
                with suppress(FileNotFoundError):
                    found[identity] = self._read(folder)
        return found

    def _read(self, folder: Path) -> Held:
        certificate, bundle = (folder / CERT_FILE).read_bytes(), (folder / CA_FILE).read_bytes()
        try:
            leaf = Leaf(certificate, (folder / KEY_FILE).read_bytes())
            return Held(leaf, read_leaf(certificate), bundle, ids_in(bundle))
        except InvalidCertificate as error:
            raise InvalidCertificate(f"{folder}: {error}") from error

    def offers(self) -> None:
        """Nobody else issues."""

    def put_holder(self, identity: Identity, leaf: Leaf, bundle: bytes) -> None:
        """Replace a holder's three files in one step."""
        folder = self.folder(identity)
        _make(folder)
        number = 1 + max((int(path.name[2:]) for path in folder.glob("..[0-9]*")), default=0)
        data = folder / f"..{number}"
        _make(data)
        _write(data / KEY_FILE, leaf.key)
        _write(data / CERT_FILE, leaf.certificate)
        _write(data / CA_FILE, bundle)
        partial = folder / "..next"
        partial.unlink(missing_ok=True)
        partial.symlink_to(data.name)
        partial.replace(folder / _DATA)
        for name in (KEY_FILE, CERT_FILE, CA_FILE):
            with suppress(FileExistsError):
                (folder / name).symlink_to(f"{_DATA}/{name}")
        for path in folder.glob("..[0-9]*"):
            if path != data:
                shutil.rmtree(path)

    def drop_holder(self, identity: Identity) -> None:
        shutil.rmtree(self.folder(identity), ignore_errors=True)


def _make(folder: Path) -> None:
    """Make a folder and what it lies in, all for their owner only."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)


def _write(path: Path, content: bytes) -> None:
    """Write a file whole, for its owner only, and make it last."""
    partial = path.with_name(f".{path.name}.new")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
