"""Profiles: named clusters in a file, `tidemark profile` writes it; and what the environment says instead.

The file is `profiles.toml` in `$XDG_CONFIG_HOME/tidemark` (`~/.config/tidemark`), or what TIDEMARK_CONFIG names.
Stays out: writing the file (command line), connecting (client).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark_wire import profile_file
from tidemark_wire.profile_file import PROFILE_VARIABLE, config_file
from tidemark_wire.tls import InvalidTls, TlsSettings

from .errors import InvalidArgument

NODES_VARIABLE, CLUSTER_VARIABLE = "TIDEMARK_NODES", "TIDEMARK_CLUSTER"
TLS_FIELDS = {"ca": "ca", "cert": "cert", "key": "key"}


@dataclass(frozen=True, slots=True)
class Profile:
    """A named cluster: its addresses, the certificate to use and a default group, empty where there is none."""

    name: str
    addresses: tuple[str, ...]
    tls: TlsSettings | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class Profiles:
    """All of the file; `current` is used where none is named, empty: none."""

    current: str = ""
    by_name: Mapping[str, Profile] = field(default_factory=dict)

    def find(self, name: str) -> Profile:
        """Return a profile; raises InvalidArgument naming those there are."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise InvalidArgument(
                "profile", f"there is no profile {name!r} in {config_file()}; there are: {known}",
                advice="Make it with `tidemark profile add`.")
        return self.by_name[name]


def load() -> Profiles:
    """Return the profiles of the file, none where there is no file; raises InvalidArgument for one that is damaged."""
    path = config_file()
    try:
        document = profile_file.read()
        return Profiles(
            str(document.get("current", "")),
            {name: _profile(name, table) for name, table in document.get("profiles", {}).items()})
    except (OSError, ValueError, TypeError, AttributeError, KeyError, InvalidTls) as error:
        raise InvalidArgument("profile", f"{path} cannot be read: {error}", advice="Correct the file.") from error


def _profile(name: str, table: Mapping[str, Any]) -> Profile:
    files = {part: table.get(part, "") for part in TLS_FIELDS}
    tls = TlsSettings.of_parts(**files, server_name=table.get("server_name", ""), names=TLS_FIELDS)
    return Profile(name, tuple(map(str, table["addresses"])), tls, str(table.get("group", "")))


def chosen(profile: str | None = None) -> Profile | None:
    """Return the cluster to use without an address: of the profile, else of the environment, else the current one.

    TIDEMARK_NODES, or TIDEMARK_CLUSTER (addresses, with commas between them), goes before TIDEMARK_PROFILE.  A
    certificate in TIDEMARK_TLS_* goes before that of a profile.
    """
    name = profile or ""
    tls = TlsSettings.of_environment()
    cluster = os.environ.get(NODES_VARIABLE) or os.environ.get(CLUSTER_VARIABLE)
    if not name and cluster:
        return Profile("", tuple(cluster.split(",")), tls)
    profiles = load()
    name = name or os.environ.get(PROFILE_VARIABLE, "") or profiles.current
    if not name:
        return None
    found = profiles.find(name)
    return found if tls is None else Profile(found.name, found.addresses, tls, found.group)


def resolved(
    addresses: str | Sequence[str] | None, profile: str | None, tls: TlsSettings | None
) -> tuple[str | Sequence[str], TlsSettings | None]:
    """Return the addresses and the certificate to connect with; raises InvalidArgument where none are given."""
    if addresses is not None:
        if profile is not None:
            raise InvalidArgument("profile", "goes without addresses")
        return addresses, tls
    try:
        found = chosen(profile)
    except InvalidTls as error:
        raise InvalidArgument("tls", str(error)) from error
    if found is None:
        raise InvalidArgument(
            "addresses", f"is missing; give host:port of a node, set {CLUSTER_VARIABLE}, or name a profile")
    return found.addresses, tls or found.tls
