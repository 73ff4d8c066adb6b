"""The certificate and the profile that were given in front of the command, and whether it has a directory.

Stays out: that of a local cluster (target).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark_wire.profile_file import GROUP_VARIABLE, default_group

from .failures import USAGE, CommandFailed

if TYPE_CHECKING:
    from tidemark_wire.tls import TlsSettings

TLS_NAMES = {"ca": "--tls-ca", "cert": "--tls-cert", "key": "--tls-key"}


@dataclass(slots=True)
class _Given:
    """Set by every run of the command line."""

    tls: TlsSettings | None = None
    profile: str = ""
    directory: bool = False


_given = _Given()


def give_tls(ca: Path | None, cert: Path | None, key: Path | None, server_name: str | None) -> None:
    """Use this certificate in the command that follows; raises CommandFailed when a part of it lacks."""
    _given.tls = None
    if ca is None and cert is None and key is None and not server_name:
        return  # without loading what a certificate needs
    from tidemark_wire.tls import InvalidTls, TlsSettings

    try:
        _given.tls = TlsSettings.of_parts(ca, cert, key, server_name or "", names=TLS_NAMES)
    except InvalidTls as error:
        raise CommandFailed(str(error), "Give all three, or none.", code=USAGE, reason="USAGE") from None


def given_tls() -> TlsSettings | None:
    """Return the certificate given for this command, None where none is."""
    return _given.tls


def give_profile(name: str | None) -> None:
    """Use this profile in the command that follows, and its group where a command names none."""
    _given.profile = name or ""
    if not os.environ.get(GROUP_VARIABLE) and (group := default_group(_given.profile)):
        os.environ[GROUP_VARIABLE] = group


def given_profile() -> str:
    """Return the profile given for this command, empty where none is."""
    return _given.profile


def give_directory(given: bool) -> None:
    """Note whether the command that follows has --dir or TIDEMARK_DIR."""
    _given.directory = given


def directory_is_given() -> bool:
    """Say whether this command has --dir or TIDEMARK_DIR."""
    return _given.directory
