"""Metadata: records in the metadata store and news of nodes, between a machine of the operator and its shell.

A machine has one record for each unit of its plane, and writes each version on the revision of the one before (H2).
Stays out: what a record says (each plane's own), the store itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .ids import Address, Member


class Record(Protocol):
    """One version of a unit's record.  `writer` names the write, so that its writer knows it again."""

    @property
    def writer(self) -> str: ...

    def encode(self) -> bytes: ...


# --- effects of a machine, beside Send, SetTimer, Reply and Trace -----------------------------------------


@dataclass(frozen=True, slots=True)
class SaveMetadata:
    """Write `record`, a `Record`, if the stored revision still is `expected`.

    Answer with MetadataSaved, or MetadataUncertain when it was refused or its outcome is unknown.
    """

    address: Address
    record: Any
    expected: int


@dataclass(frozen=True, slots=True)
class LoadMetadata:
    """Read the record afresh; answer with MetadataLoaded, retrying for as long as the store is away."""

    address: Address


# --- events of a machine, beside Received and TimerFired --------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetadataSaved:
    """The write of `record.writer` is stored."""

    address: Address
    writer: str
    revision: int


@dataclass(frozen=True, slots=True)
class MetadataUncertain:
    """The write of `record.writer` lost its race, or its outcome is unknown: read back."""

    address: Address
    writer: str


@dataclass(frozen=True, slots=True)
class MetadataLoaded:
    """The record as stored, seen by the watch or read on request (`fresh`); None when the unit was deleted."""

    address: Address
    record: Any
    revision: int
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node answers: its member now, and the boot id of its process (new on every start)."""

    member: Member
    boot: str


@dataclass(frozen=True, slots=True)
class NodeDown:
    """The failure detector gave the node up."""

    node: str


@dataclass(frozen=True, slots=True)
class SetActive:
    """This operator holds the lease, or lost it.  It saves work; safety never depends on it."""

    active: bool
