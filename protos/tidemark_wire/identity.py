"""Who is on the other side of a connection, by its certificate, and what a log group's access lists let it do.

A certificate names one identity, the URI `spiffe://CLUSTER/KIND/NAME`; KIND is node, operator, admin or client.
Stays out: which call needs which role (node, operator), TLS itself (`tls`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

EVERYBODY = "*"
"""In an access list: every client of the cluster."""

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_URI = re.compile(rf"spiffe://([a-z0-9._-]{{1,255}})/(node|operator|admin|client)/({NAME.pattern})")
_SPIFFE_KEY = "peer_spiffe_id"
"""Where gRPC puts the URI, when the certificate has exactly one."""


class Kind(StrEnum):
    """What somebody is in the cluster."""

    NODE = "node"
    OPERATOR = "operator"
    ADMIN = "admin"    # a person who may do everything that a person may
    CLIENT = "client"  # may do what the log groups say


class Role(StrEnum):
    """What a client may do with one log group; an admin of it may do all."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


class Identity(NamedTuple):
    """One identity; its text is the URI in the certificate."""

    cluster: str
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"spiffe://{self.cluster}/{self.kind}/{self.name}"


def identity_of(uri: str) -> Identity | None:
    """Return the identity that a URI names, None when it names none."""
    match = _URI.fullmatch(uri)
    return Identity(match[1], Kind(match[2]), match[3]) if match else None


def peer_identity(context: Any) -> Identity | None:
    """Return who calls, by the certificate that the TLS handshake proved; None when it names no identity."""
    found: Sequence[bytes] = context.auth_context().get(_SPIFFE_KEY) or ()
    return identity_of(found[0].decode(errors="replace")) if len(found) == 1 else None


class AccessLists(NamedTuple):
    """Names of clients by role."""

    readers: frozenset[str] = frozenset()
    writers: frozenset[str] = frozenset()
    admins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, readers: Iterable[str], writers: Iterable[str], admins: Iterable[str]) -> AccessLists:
        return cls(frozenset(readers), frozenset(writers), frozenset(admins))

    def names(self, role: Role) -> frozenset[str]:
        match role:
            case Role.READER:
                return self.readers
            case Role.WRITER:
                return self.writers
            case Role.ADMIN:
                return self.admins


def may(identity: Identity, role: Role, lists: AccessLists | None) -> bool:
    """Say whether somebody has a role in a log group.

    Without lists every client of the cluster may read and write, and only the cluster's admins administer.
    """
    if identity.kind is Kind.ADMIN:
        return True
    if identity.kind is not Kind.CLIENT:
        return False
    if lists is None:
        return role is not Role.ADMIN
    return any(EVERYBODY in names or identity.name in names for names in {lists.names(role), lists.admins})
