"""TLS of every connection: gRPC credentials from three PEM texts, and from what they are next when they change.

Mostly they are files: a server looks at them at every handshake, a client whenever it opens a channel, so that what is
written is in force for new connections within LOOK_S, without a restart.  Established connections go on.  Files that
do not fit together, as for a moment while they are replaced, change nothing.
Stays out: issuing certificates (operator), what a certificate allows (`identity`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc

from .tls_names import ENVIRONMENT, SERVER_NAME_VARIABLE

CERT_FILE, KEY_FILE, CA_FILE = "tls.crt", "tls.key", "ca.crt"
LOOK_S = 0.5
READS_MAX = 5

_log = logging.getLogger(__name__)

_Mark = tuple[tuple[int, int, int], ...]


class InvalidTls(Exception):
    """Certificate, key and CA cannot be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Where our certificate, its key and the CAs we trust are, as PEM files.

    `server_name` is what the other side's certificate must name instead of the host that is dialed.
    """

    ca: Path | str
    cert: Path | str
    key: Path | str
    server_name: str = ""

    @classmethod
    def of_directory(cls, directory: Path | str, server_name: str = "") -> TlsSettings:
        """Return the settings of a directory laid out as a Kubernetes TLS Secret: tls.crt, tls.key, ca.crt."""
        place = Path(directory)
        return cls(place / CA_FILE, place / CERT_FILE, place / KEY_FILE, server_name)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> TlsSettings | None:
        """Return what TIDEMARK_TLS_CA, _CERT and _KEY say, None when none is set; raises InvalidTls for a part."""
        said = os.environ if environment is None else environment
        files = {name: said.get(variable, "") for name, variable in ENVIRONMENT.items()}
        return cls.of_parts(**files, server_name=said.get(SERVER_NAME_VARIABLE, ""), names=ENVIRONMENT)

    @classmethod
    def of_parts(
        cls, ca: Path | str | None, cert: Path | str | None, key: Path | str | None, server_name: str = "", *,
        names: Mapping[str, str],
    ) -> TlsSettings | None:
        """Return settings of all three files, None when none is given; raises InvalidTls naming those that lack."""
        given = {"ca": ca, "cert": cert, "key": key}
        lacking = [names[name] for name, path in given.items() if not path]
        if len(lacking) == len(given):
            return None
        if lacking or not (ca and cert and key):
            raise InvalidTls(f"{' and '.join(lacking)}: not given; CA, certificate and key go together")
        return cls(ca, cert, key, server_name)


@dataclass(frozen=True, slots=True)
class Material:
    """What the files said, all of one moment."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """Name this certificate together with the CAs trusted beside it; says nothing of the key."""
        return fingerprint_of(self.certificate, self.ca)


def fingerprint_of(certificate: bytes, ca: bytes) -> str:
    """Return the name of a certificate and the CAs trusted beside it."""
    return hashlib.sha256(certificate + b"\0" + ca).hexdigest()


def read_material(settings: TlsSettings) -> Material:
    """Read the three files and check that they fit together; raises InvalidTls."""
    return _read(settings)[0]


def _read(settings: TlsSettings) -> tuple[Material, _Mark]:
    """Read until nothing changed meanwhile: somebody may be replacing the files."""
    trouble = InvalidTls("nothing was read")
    for _attempt in range(READS_MAX):
        try:
            before = _mark(settings)
            material = Material(*(Path(path).read_bytes() for path in (settings.ca, settings.cert, settings.key)))
            _check(settings)
            if _mark(settings) == before:
                return material, before
            trouble = InvalidTls(f"{settings.cert}: is being replaced over and over")
        except InvalidTls as error:
            trouble = error
        except OSError as error:
            trouble = InvalidTls(f"{error.filename}: {error.strerror}")
    raise trouble


def _mark(settings: TlsSettings) -> _Mark:
    """Return what changes with the files."""
    try:
        seen = [Path(path).stat() for path in (settings.ca, settings.cert, settings.key)]
    except OSError as error:
        raise InvalidTls(f"{error.filename}: {error.strerror}") from error
    return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in seen)


def _check(settings: TlsSettings) -> None:
    """Raise InvalidTls unless the key is that of the certificate and the CA file holds certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.cert, settings.key, password=lambda: b"")
    except ssl.SSLError as error:
        raise InvalidTls(f"{settings.cert} and {settings.key}: no certificate and its own, plain key") from error
    try:
        context.load_verify_locations(settings.ca)
    except ssl.SSLError as error:
        raise InvalidTls(f"{settings.ca}: holds no CA certificate") from error


class Credentials(ABC):
    """The credentials in force now.  `generation` grows whenever they changed."""

    def __init__(self, material: Material, server_name: str = "") -> None:
        self.server_name = server_name
        self.generation = 0
        self._lock = threading.Lock()  # gRPC asks from threads of its own
        self._material = material
        self._channel = _for_channels(material)

    @property
    def material(self) -> Material:
        """What is in force."""
        self._look()
        return self._material

    def for_channel(self) -> grpc.ChannelCredentials:
        """Return credentials for a channel that is opened now."""
        self._look()
        return self._channel

    def for_server(self) -> grpc.ServerCredentials:
        """Return credentials that ask every client for a certificate, and look again for each."""
        served = self._generation_and_material()

        def news() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            found = self._generation_and_material()
            if found[0] == served[0]:
                return None
            served = found
            return _server_configuration(found[1])

        # The stubs do not know that None leaves the configuration as it is.
        return grpc.dynamic_ssl_server_credentials(
            _server_configuration(served[1]), cast(Any, news), require_client_authentication=True)

    def changed_since(self, generation: int) -> bool:
        """Say whether a channel that was opened in `generation` should give way to a new one."""
        self._look()
        return self.generation != generation

    def _generation_and_material(self) -> tuple[int, Material]:
        self._look()
        with self._lock:
            return self.generation, self._material

    @abstractmethod
    def _look(self) -> None:
        """Take what is to be in force by now."""

    def _take(self, material: Material) -> None:
        """Put `material` in force; the caller holds the lock."""
        if material != self._material:
            self._material = material
            self._channel = _for_channels(material)
            self.generation += 1
            _log.info("TLS certificates were replaced: %s", material.fingerprint[:16])


class FileCredentials(Credentials):
    """The credentials that the files give now."""

    def __init__(self, settings: TlsSettings) -> None:
        self.settings = settings
        material, self._seen = _read(settings)
        self._looked_at = time.monotonic()
        self._trouble = ""
        super().__init__(material, settings.server_name)

    def _look(self) -> None:
        """Take what the files say now, at most every LOOK_S."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at < LOOK_S:
                return
            self._looked_at = now
            try:
                if _mark(self.settings) == self._seen:
                    return
                material, self._seen = _read(self.settings)
            except InvalidTls as error:
                if str(error) != self._trouble:
                    _log.warning("TLS files cannot be used, those read before stay in force: %s", error)
                self._trouble = str(error)
                return
            self._trouble = ""
            self._take(material)


class GivenCredentials(Credentials):
    """Credentials that somebody hands over, from wherever they are kept; no file is involved."""

    def give(self, material: Material) -> None:
        """Put these in force; who gives them knows that they fit together."""
        with self._lock:
            self._take(material)

    def _look(self) -> None:
        """What was given is in force."""


def _for_channels(material: Material) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)


def _server_configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.certificate)], material.ca)
