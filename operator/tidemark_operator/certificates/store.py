"""Where certificates are kept: what `keeper` needs of a place; files here, Secrets on Kubernetes.

Stays out: any such place.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tidemark_wire.identity import Identity

from .authority import Authority, Leaf, LeafFacts


@dataclass(frozen=True, slots=True)
class Held:
    """What one holder has: its certificate, what that says, and the CAs it trusts."""

    leaf: Leaf
    facts: LeafFacts
    bundle: bytes
    trusts: frozenset[str]


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
    def put_holder(self, identity: Identity, leaf: Leaf, bundle: bytes) -> None: ...
    def drop_holder(self, identity: Identity) -> None: ...
