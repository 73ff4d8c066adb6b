"""Custom resources as the operator takes them: what people wrote, what is wrong with it, what this release cannot do.

The API server checks objects when they are written; what it let in before its definition was this one, or without it,
is judged here again, and nothing may be taken for granted before that.
Pure.  Stays out: what a valid object is (`resources`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemark_wire.version import VERSION

from ..objects import Identity
from ..resources import InvalidManifest, load_resource
from ..resources.labels import Annotation
from . import node_config

Object = dict[str, Any]

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def store_of(item: Object) -> tuple[tuple[str, ...], str]:
    """Return where the metadata of a cluster lies: endpoints and key prefix."""
    etcd, metadata = item["spec"]["metadataStore"]["etcd"], item["metadata"]
    return tuple(etcd["endpoints"]), etcd.get("keyPrefix") or f"/tidemark/{metadata['namespace']}/{metadata['name']}"


def written(item: Object) -> Object:
    """Return an object as people wrote it."""
    metadata = item["metadata"]
    annotations = {name: text for name, text in metadata.get("annotations", {}).items() if name != _LAST_APPLIED}
    kept = {"name": metadata["name"], "namespace": metadata["namespace"],
            "labels": metadata.get("labels", {}), "annotations": annotations}
    return {**{name: item[name] for name in ("apiVersion", "kind", "spec") if name in item}, "metadata": kept}


def invalid(item: Object) -> str:
    """Return what the models refuse of an object, with its fields; nothing where they do not."""
    try:
        load_resource(written(item), "object")
    except InvalidManifest as error:
        return error.told()
    return ""


def cluster_of(item: Object) -> str:
    """Return the name of the cluster that an object says it belongs to, nothing where it does not say."""
    found: Any = item
    for field in ("spec", "clusterRef", "name"):
        found = found.get(field) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""


def identity(item: Object) -> Identity:
    metadata = item["metadata"]
    return Identity(metadata["uid"], metadata["generation"], metadata["creationTimestamp"])


def paused(item: Object) -> bool:
    return bool(item["metadata"].get("annotations", {}).get(Annotation.PAUSE.value) == "true")


def unsupported(spec: Mapping[str, Any]) -> str:
    """Return why a cluster cannot be run on Kubernetes by this release."""
    return skewed(spec["version"], VERSION) or node_config.problem(spec)


def skewed(wanted: str, own: str) -> str:
    """Return why an operator of version `own` does not run nodes of version `wanted`: N and N-1 it does."""
    (major, minor), (own_major, own_minor) = (_minor_of(each) for each in (wanted, own))
    if (major, minor) > (own_major, own_minor):
        return f"spec.version: {wanted} is newer than this operator, {own}: upgrade the operator first"
    if major != own_major or minor < own_minor - 1:
        return f"spec.version: {wanted} is more than one minor version behind this operator, {own}"
    return ""


def _minor_of(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
