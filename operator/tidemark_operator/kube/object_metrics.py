"""ObjectMetrics: what the statuses of custom resources say, as metrics; computed at a scrape, at no cost in between.

Every operator tells them, the one that stands by too, for it sees the same statuses: whoever asks takes the largest.
Stays out: what a status says (`status`), metrics of the operator itself (`health`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..resources.cluster_status import NodeState
from ..resources.kinds import KINDS, WRITTEN, Deletion

Object = Mapping[str, Any]

VALUES = {"True": 1.0, "False": 0.0}
"""Of conditions; anything else is -1."""

NODES = ("tidemark_cluster_nodes", "Nodes of a cluster by what they are at.", ("namespace", "cluster", "state"))
DESIRED = ("tidemark_cluster_nodes_desired", "Nodes that a cluster should have.", ("namespace", "cluster"))
EXPIRY = ("tidemark_certificate_expiry_timestamp_seconds", "When the first certificate of a cluster's nodes ends.",
          ("namespace", "cluster"))
SHARDS = ("tidemark_loggroup_shards", "Shards of a log group by what they are at.", ("namespace", "group", "state"))
GROUP = ("tidemark_loggroup_info", "The number of a log group: what stands before the slash in the label shard.",
         ("namespace", "group", "group_id"))
MOVES = ("tidemark_reconfiguration_moves", "Moves of a Reconfiguration that is not over, by what became of them.",
         ("namespace", "reconfiguration", "state"))
CONDITION = ("tidemark_object_condition", "Conditions: 1 is True, 0 False, -1 Unknown.",
             ("kind", "namespace", "name", "type"))


class ObjectMetrics(Collector):
    """Register it; `objects` are the custom resources as last seen, by kind."""

    def __init__(self, objects: Mapping[str, Iterable[Object]]) -> None:
        self._objects = objects

    def collect(self) -> Iterator[Metric]:
        families = {
            each[0]: GaugeMetricFamily(*each[:2], labels=each[2])
            for each in (NODES, DESIRED, EXPIRY, GROUP, SHARDS, MOVES, CONDITION)}
        for kind in WRITTEN:
            read = _SAMPLES.get(kind, _nothing)
            for item in self._objects[kind]:
                status, namespace = item.get("status") or {}, item["metadata"]["namespace"]
                name = item["metadata"]["name"]
                for family, labels, value in read(status):
                    families[family[0]].add_metric([namespace, name, *labels], value)
                if KINDS[kind].deletion is not Deletion.WHEN_OVER or _runs(status):
                    for each in status.get("conditions", ()):
                        families[CONDITION[0]].add_metric(
                            [kind, namespace, name, each["type"]], VALUES.get(each["status"], -1.0))
        yield from families.values()


Samples = Iterator[tuple[tuple[str, str, tuple[str, ...]], tuple[str, ...], float]]


def _cluster(status: Object) -> Samples:
    states = Counter(node["state"] for node in status.get("nodes", ()))
    for state in NodeState:
        yield NODES, (state.value,), states[state.value]
    if "nodeSummary" in status:
        yield DESIRED, (), status["nodeSummary"].get("desired", 0)
    if ends := (status.get("certificates") or {}).get("earliestExpirationTime"):
        yield EXPIRY, (), datetime.fromisoformat(ends).timestamp()


def _group(status: Object) -> Samples:
    if "groupID" in status:
        yield GROUP, (str(status["groupID"]),), 1
    for state, count in (status.get("shards") or {}).items():
        yield SHARDS, (_snake(state),), count


def _reconfiguration(status: Object) -> Samples:
    """One that is over is in its status and in events; metrics of it would stay as long as the object."""
    if _runs(status):
        progress, planned = status.get("progress") or {}, (status.get("plan") or {}).get("moves", 0)
        yield MOVES, ("planned",), planned
        for state in ("completed", "inProgress", "failed"):
            yield MOVES, (_snake(state),), progress.get(state, 0)


def _nothing(_status: Object) -> Samples:
    yield from ()


_SAMPLES = {"TidemarkCluster": _cluster, "LogGroup": _group, "Reconfiguration": _reconfiguration}


def _runs(status: Object) -> bool:
    return status.get("stage") != "Finished"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", lambda found: "_" + found[1].lower(), name)
