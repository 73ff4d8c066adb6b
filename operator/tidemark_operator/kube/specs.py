"""Custom resources as the operator takes them: what people wrote, and what of it this release cannot carry out.

Pure.  Stays out: what a valid object is (`resources`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..objects import Identity
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
    return {**{name: item[name] for name in ("apiVersion", "kind", "spec")}, "metadata": kept}


def identity(item: Object) -> Identity:
    metadata = item["metadata"]
    return Identity(metadata["uid"], metadata["generation"], metadata["creationTimestamp"])


def paused(item: Object) -> bool:
    return item["metadata"].get("annotations", {}).get(Annotation.PAUSE.value) == "true"


def unsupported(spec: Mapping[str, Any]) -> str:
    """Return why a cluster cannot be run on Kubernetes by this release; nothing runs less secure than was asked."""
    security = spec.get("security") or {}
    mode = (security.get("tls") or {}).get("mode", "Managed")
    if mode != "Disabled":
        return f"security.tls.mode: {mode} is not carried out on Kubernetes by this release; Disabled is insecure"
    for field in ("tlsSecretRef", "credentialsSecretRef"):
        if field in spec["metadataStore"]["etcd"]:
            return f"metadataStore.etcd.{field}: secrets are not read by this release"
    return node_config.problem(spec)


def unreachable(spec: Mapping[str, Any]) -> str:
    """Return why this release cannot even speak to a cluster's etcd."""
    if any(endpoint.startswith("https:") for endpoint in spec["metadataStore"]["etcd"]["endpoints"]):
        return "metadataStore.etcd.endpoints: TLS to etcd needs secrets, which are not read by this release"
    return ""
