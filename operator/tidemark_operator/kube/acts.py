"""Acts: requests that plans are made of, each with a precondition, so that a late plan does no harm.

Stays out: which are due (`podkeeper`, `cert_manager`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .api import ALL, KubeApi, KubeRefused
from .builders import Cluster, Object, owns

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Act:
    """One request; `uid` names the object it is meant for, none is known of one that is made."""

    verb: Literal["create", "apply", "merge", "delete", "force-delete"]
    manifest: Object
    uid: str = ""
    why: str = ""

    @property
    def title(self) -> str:
        return f"{self.manifest['kind']}/{self.manifest['metadata']['name']}"


async def carry_out(api: KubeApi, acts: Iterable[Act]) -> list[Object]:
    """Do it in order; return the objects as they are then.  Raises KubeError where the API server refuses."""
    found = []
    for act in acts:
        manifest = act.manifest
        log.info("%s %s%s", act.verb, act.title, f": {act.why}" if act.why else "")
        try:
            match act.verb:
                case "create":
                    found.append(await api.create(manifest))
                case "apply":
                    found.append(await api.apply(manifest))
                case "merge":
                    kind, metadata = ALL[manifest["kind"]], manifest["metadata"]
                    changes = {
                        **manifest, "metadata": {"uid": act.uid, **{
                            field: value for field, value in metadata.items() if field not in ("name", "namespace")}}}
                    found.append(await api.merge(kind, metadata["namespace"], metadata["name"], changes))
                case "delete" | "force-delete":
                    kind, metadata = ALL[manifest["kind"]], manifest["metadata"]
                    await api.delete(
                        kind, metadata["namespace"], metadata["name"], act.uid, force=act.verb == "force-delete")
        except KubeRefused as refused:
            if refused.code not in (404, 409):  # of another name's holder or another uid: a watch shows which
                raise
            log.info("%s is not what it was: %s", act.title, refused.message)
    return found


def contains(live: Any, wanted: Any) -> bool:
    """Say whether what is wanted is all there; what the API server or others added does not matter."""
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            key in live and contains(live[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(
            contains(one, other) for one, other in zip(live, wanted, strict=True))
    return bool(live == wanted)


def applied(cluster: Cluster, wanted: Object, known: Mapping[str, Object]) -> list[Act]:
    """Return what makes an object of the cluster be as it is wanted."""
    live = known.get(wanted["metadata"]["name"])
    if live is None:
        return [Act("apply", wanted)]
    if not owns(cluster, live) or "deletionTimestamp" in live["metadata"] or contains(live, wanted):
        return []
    return [Act("apply", wanted, why="it differs")]


def deletion(kind: str, live: Object, why: str, *, force: bool = False) -> Act:
    """With `force`, without waiting for a machine that will never answer."""
    metadata = {name: live["metadata"][name] for name in ("name", "namespace")}
    manifest = {"kind": kind, "metadata": metadata}
    return Act("force-delete" if force else "delete", manifest, live["metadata"]["uid"], why)
