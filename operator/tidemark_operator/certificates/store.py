"""Where certificates are kept: what `keeper` needs of a place; files here, Secrets on Kubernetes.

Stays out: any such place.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tidemark_wire.identity import Identity

from ..resources.conditions import ConditionReason
from .authority import Authority, Leaf, LeafFacts


@dataclass(frozen=True, slots=True)
class Held:
    """What one holder has: its certificate, what that says, and the CAs it trusts."""

    leaf: Leaf
    facts: LeafFacts
    bundle: bytes
    trusts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Lack:
    """What somebody else who issues has not issued, and why."""

    reason: ConditionReason
    message: str


class CertificateStore(Protocol):
    """The certificates of one cluster."""

    @property
    def cluster(self) -> str: ...
    def locked(self) -> AbstractContextManager[None]: ...
    def authorities(self) -> list[Authority]: ...
    def retiring(self) -> frozenset[str]: ...
    def put_authority(self, authority: Authority) -> None: ...
    def drop_authority(self, authority: str) -> None: ...
    def retire(self, authority: str) -> None: ...
    def holders(self) -> dict[Identity, Held]: ...

    @property
    def adopts(self) -> bool:
        """Say whether somebody else may have issued before: then CAs without keys can be kept here."""
        ...

    def offers(self) -> dict[Identity, Held] | None:
        """Return what somebody else has issued for holders to take over; None where nobody else issues."""
        ...

    def put_holder(self, identity: Identity, leaf: Leaf, bundle: bytes) -> None: ...
    def drop_holder(self, identity: Identity) -> None: ...
