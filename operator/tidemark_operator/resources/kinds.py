"""The kinds as one table: where the operator stores objects of each, what it shows, deletes and serves.

Code that treats kinds differently iterates `KINDS` or looks a row up.  A new kind is a model and a row here, its lists
in `conditions` and `events`, and its status.  `served` is the one place that says whether this release serves a kind,
or a `spec.kind` of one: `not_served` reads it.
Stays out: what carries an object out, and how its status is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from .base import Column, Names, Resource, condition_column
from .cluster import TidemarkCluster
from .keyspace import Keyspace
from .loggroup import GroupKind, LogGroup
from .reconfiguration import Reconfiguration
from .shard import MIRRORS, Shard


class Deletion(StrEnum):
    """The effect of deleting an object."""

    REFUSED = "refused"
    DETACH = "data stays under `deletionPolicy: Retain`, and goes with the object otherwise"
    WHEN_OVER = "the stored object goes, once it has finished or before it begins"


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """One row.  `area` is the folder of its stored objects in etcd, empty: this kind is not stored as an object."""

    model: type[Resource]
    area: str
    deletion: Deletion
    view: tuple[Column, ...]
    """Columns of `tidemark get`, after the name."""
    title: str = ""
    """The name of one object in messages."""
    words: tuple[str, ...] = ()
    """The names that `tidemark get` accepts besides those of Kubernetes."""
    counter: str = ""
    """The counter in etcd that numbers its objects; empty: they have no number."""
    single: bool = False
    """There is one object in a key prefix, and `area` is its key."""
    mirror: bool = False
    """The operator alone writes its objects: they show what is stored elsewhere."""
    operator_creates: bool = False
    """The operator creates some of its objects by itself."""
    undeletable: str = ""
    """Why deletion is refused."""
    shape: str = ""
    """The field of `spec` in which kept data and an object that adopts it must agree; empty: no data is kept."""
    served: bool = True
    variants: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    """Whether each value of `spec.kind` is served."""

    @property
    def names(self) -> Names:
        return self.model.NAMES

    @property
    def name(self) -> str:
        return self.names.kind


_READY, _AVAILABLE = condition_column("READY", "Ready"), condition_column("AVAILABLE", "Available")
_REASON = condition_column("REASON", "Ready", "reason")

_ROWS = (
    ResourceKind(
        TidemarkCluster, "cluster", Deletion.REFUSED, title="cluster", words=("cluster", "clusters"), single=True,
        undeletable="a local cluster ends with `tidemark dev down`; it is not deleted",
        view=(
            _READY, _AVAILABLE, Column("NODES", ".status.readyNodes"),
            Column("RECONFIGURATION", ".status.activeReconfiguration"), _REASON),
    ),
    ResourceKind(
        LogGroup, "groups", Deletion.DETACH, title="log group", words=("group", "groups"), counter="next-group-id",
        shape="shards",
        view=(
            _READY, _AVAILABLE, Column("SHARDS", ".status.onlineShards"), Column("QUORUM", ".status.quorum"), _REASON),
        variants=MappingProxyType({GroupKind.LOG: True, GroupKind.DOCUMENTS: True}),
    ),
    ResourceKind(
        Keyspace, "keyspaces", Deletion.DETACH, title="keyspace", counter="next-keyspace-id", shape="partitions",
        view=(
            _READY, _AVAILABLE, Column("N/R/W", ".status.quorums"), Column("PARTITIONS", ".spec.partitions"), _REASON),
    ),
    ResourceKind(
        Shard, "", Deletion.REFUSED, title="shard", mirror=True, undeletable=MIRRORS,
        view=(
            Column("STATE", ".status.state"), Column("EPOCH", ".status.epoch", type="integer"),
            Column("LEADER", ".status.leader"), Column("MEMBERS", ".status.members"),
            Column("IN SYNC", ".status.inSync")),
    ),
    ResourceKind(
        Reconfiguration, "reconfigurations", Deletion.WHEN_OVER, title="reconfiguration",
        counter="next-reconfiguration", operator_creates=True,
        view=(
            Column("TYPE", ".spec.type"), Column("STAGE", ".status.stage"),
            Column("PROGRESS", ".status.progress.summary"), condition_column("SUCCEEDED", "Succeeded"),
            condition_column("REASON", "Succeeded", "reason")),
    ),
)

KINDS: dict[str, ResourceKind] = {row.name: row for row in _ROWS}

STORED = tuple(row.name for row in _ROWS if row.area)
"""Kinds whose objects the operator stores as they were applied."""

WRITTEN = tuple(row.name for row in _ROWS if not row.mirror)
"""Kinds whose objects people write."""

IN_CLUSTERS = tuple(row.name for row in _ROWS if not row.mirror and not row.single)
"""Kinds whose objects people write into a cluster."""


def not_served(kind: str, spec: Mapping[str, Any]) -> str:
    """Return what this release does not serve of an object, as in "keyspaces"; empty where it serves the object."""
    row = KINDS[kind]
    if not row.served:
        return f"{row.title}s"
    variant = spec.get("kind", "")
    return "" if row.variants.get(variant, True) else f"{row.title}s of kind {variant}"


def not_served_message(kind: str, spec: Mapping[str, Any]) -> str:
    """Return what to tell people of an object that this release does not serve; empty where it serves the object."""
    what = not_served(kind, spec)
    return does_not_serve(what) if what else ""


def does_not_serve(what: str) -> str:
    return f"this release does not serve {what}: it checks and stores the object, and does nothing else"


def kind_of(word: str) -> str:
    """Return the kind that a word of the command line means, empty for an unknown one."""
    word = word.lower()
    return next((
        row.name for row in KINDS.values()
        if word in (row.names.singular, row.names.plural, row.names.short, *row.words)), "")
