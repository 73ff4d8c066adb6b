"""State: one cluster as its objects tell it; plain objects of the API, and what is read out of them.

Pure.  Stays out: reading them (server), judging them (explain).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..failures import CommandFailed
from ..reconfigurations import condition_of, stage, status_of

Object = dict[str, Any]


def name_of(item: Object) -> str:
    return str(item["metadata"]["name"])


def holds(item: Object, kind: str) -> bool:
    return condition_of(item, kind).get("status") == "True"


def said(found: Mapping[str, Any]) -> str:
    """Return the reason and the message of a condition, or of a state that has both."""
    return ": ".join(str(part) for part in (found.get("reason"), found.get("message")) if part)


def some(names: Sequence[str], most: int = 12) -> str:
    """List names, not too many."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def missing(what: str, name: str, where: str, known: Sequence[str]) -> CommandFailed:
    """Return the error that says what there is instead."""
    advice = f"There are {some(sorted(known))}." if known else f"There are none in {where}."
    return CommandFailed(f"there is no {what} {name!r} in {where}", advice, reason="NOT_FOUND")


@dataclass(frozen=True, slots=True)
class State:
    """`pods` is None where they may not be read."""

    cluster: Object
    groups: Sequence[Object] = ()
    shards: Sequence[Object] = ()
    reconfigurations: Sequence[Object] = ()
    pods: Mapping[str, Object] | None = field(default_factory=dict)

    @property
    def name(self) -> str:
        return name_of(self.cluster)

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return what the cluster says of each node."""
        return {node["name"]: node for node in status_of(self.cluster).get("nodes") or ()}

    @property
    def running(self) -> str:
        """Name of the Reconfiguration that runs, or empty."""
        return str(status_of(self.cluster).get("activeReconfiguration") or "")

    def unfinished(self) -> list[Object]:
        """Return Reconfigurations that are not over: the one that runs, those in line, those that want approval."""
        open_ones = [item for item in self.reconfigurations if stage(item) != "Finished"]
        return sorted(open_ones, key=lambda item: (
            name_of(item) != self.running, stage(item) == "AwaitingApproval",
            item["metadata"].get("creationTimestamp", ""), name_of(item)))

    def group(self, name: str) -> Object:
        for item in self.groups:
            if name_of(item) == name:
                return item
        raise missing("LogGroup", name, f"cluster {self.name}", [name_of(item) for item in self.groups])

    def shard(self, group: str, index: int) -> Object:
        """Raises CommandFailed with the shards there are."""
        projection = self.group(group)["spec"].get("shardProjection", "Full")
        if projection != "Full":
            raise CommandFailed(
                f"the shards of {group} are not shown as objects: its shardProjection is {projection}",
                "Set spec.shardProjection to Full, or look with `tidemark shards`.", reason="NOT_FOUND")
        of_group = {
            shard["spec"]["shardID"]: shard for shard in self.shards if shard["spec"]["logGroupRef"]["name"] == group}
        if index not in of_group:
            raise missing("shard", f"{group}/{index}", f"LogGroup {group}", [f"{group}/{each}" for each in of_group])
        return of_group[index]

    def check_node(self, name: str) -> None:
        """Raises CommandFailed with the nodes there are."""
        if name not in self.nodes:
            raise missing("node", name, f"cluster {self.name}", list(self.nodes))


def members(shard: Object) -> list[dict[str, Any]]:
    return list(status_of(shard).get("ensemble") or ())


def shard_title(shard: Object) -> str:
    return f"{shard['spec']['logGroupRef']['name']}/{shard['spec']['shardID']}"
