"""What a cluster's pods, claims, services and disruption budget look like, out of its spec.

Pure: the same spec gives the same objects, and the version of the operator is in none of them.
Stays out: which of them should be there (`podkeeper`).
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..resources import API_VERSION, quantity_bytes
from ..resources.labels import MANAGED_BY, READINESS_GATE, Annotation, Label
from . import node_config

Object = dict[str, Any]

NODE_PORT, HTTP_PORT = 6690, 8080
USER = 65532
DATA_PATH = "/var/lib/tidemark/data"
TLS_PATH = "/etc/tidemark/tls"
IMAGE = "ghcr.io/tidemark/tidemark-node"
DEFAULT_RESOURCES: Object = {"requests": {"cpu": "250m", "memory": "512Mi"}}
"""Where a pool says nothing: requests keep its pods from being the first that a machine short of memory evicts."""
TMP_SIZE = "64Mi"
"""A node writes nothing there; without a limit whatever did would fill the machine's disk."""
GRACE_S = 30
"""What a pod is given to end beyond the time for handing leaderships over."""


_REVISION_OF_CLUSTER = (
    "version", "image", "imagePullPolicy", "imagePullSecrets", "failureDomain", "config")
_REVISION_OF_POOL = (
    "resources", "nodeSelector", "tolerations", "affinity", "priorityClassName", "podMetadata", "config")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A TidemarkCluster as it was accepted, with its defaults; `restarted_at` is the annotation, empty for none."""

    namespace: str
    name: str
    uid: str
    spec: Mapping[str, Any]
    restarted_at: str = ""
    node_image: str = IMAGE

    def pool(self, name: str) -> Mapping[str, Any] | None:
        return next((pool for pool in self.spec["nodePools"] if pool["name"] == name), None)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that should exist, unless it is `removed`; `incarnation` is its disk's, empty until it was reached."""

    name: str
    number: int
    pool: str
    zone: str = ""
    location: str = ""
    incarnation: str = ""
    removed: bool = False


def uses_tls(spec: Mapping[str, Any]) -> bool:
    """Say whether the nodes of a cluster show and ask for certificates."""
    return tls_mode(spec) != "Disabled"


def issued_elsewhere(spec: Mapping[str, Any]) -> bool:
    """Say whether cert-manager issues the certificates of a cluster."""
    return tls_mode(spec) == "CertManager"


def tls_mode(spec: Mapping[str, Any]) -> str:
    return str(((spec.get("security") or {}).get("tls") or {}).get("mode", "Managed"))


def relocates(spec: Mapping[str, Any]) -> bool:
    """Say whether copies leave a node before its pod may be evicted."""
    return bool((spec.get("disruption") or {}).get("onNodeDrain") == "Relocate")


def secret_name(cluster: str, kind: str, name: str) -> str:
    """Name of the Secret with somebody's certificate, by the kind of identity it is."""
    match kind:
        case "node":
            return f"{name}-tls"
        case "client":
            return f"{cluster}-client-{name}-tls"
    return f"{cluster}-{kind}-tls"  # there is one of the others


def certificate_name(cluster: str, kind: str, name: str) -> str:
    """Name of the Certificate that cert-manager is asked for."""
    return secret_name(cluster, kind, name).removesuffix("-tls")


def issued_secret_name(cluster: str, kind: str, name: str) -> str:
    """Name of the Secret that cert-manager writes; what is used of it is in the one of `secret_name`."""
    return f"{certificate_name(cluster, kind, name)}-issued"


def ca_secret_name(cluster: str) -> str:
    return f"{cluster}-ca"


def server_names(namespace: str, cluster: str, node: str) -> tuple[str, ...]:
    """Return the names that a node answers to: its own, first, and those of the services it stands behind."""
    domain = nodes_name(cluster)
    hosts = (f"{node}.{domain}", cluster, domain)
    return (node, *(f"{host}{suffix}" for host in hosts for suffix in (
        "", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")))


def claim_name(node: str) -> str:
    return f"data-{node}"


def nodes_name(cluster: str) -> str:
    """Name of the headless service, the domain of the nodes, and of their disruption budget."""
    return f"{cluster}-nodes"


def labels(cluster: Cluster) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "tidemark", "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/component": "node", "app.kubernetes.io/managed-by": MANAGED_BY,
        Label.CLUSTER.value: cluster.name,
    }


def selector(cluster: Cluster) -> dict[str, str]:
    return {Label.CLUSTER.value: cluster.name, "app.kubernetes.io/component": "node"}


def owner(cluster: Cluster) -> list[Object]:
    return [{
        "apiVersion": API_VERSION, "kind": "TidemarkCluster", "name": cluster.name, "uid": cluster.uid,
        "controller": True, "blockOwnerDeletion": True}]


def owns(cluster: Cluster, item: Mapping[str, Any]) -> bool:
    """Say whether an object is of this cluster; what an earlier one of its name left goes with that one."""
    return any(each["uid"] == cluster.uid for each in item["metadata"].get("ownerReferences", ()))


def metadata_of(cluster: Cluster, name: str) -> Object:
    return {
        "name": name, "namespace": cluster.namespace, "labels": labels(cluster), "ownerReferences": owner(cluster)}


def node_claim(cluster: Cluster, node: NodeView) -> Object:
    pool = cluster.pool(node.pool)
    assert pool is not None, "only nodes of pools that exist get objects"
    volume = pool["storage"]["data"]
    retention = cluster.spec.get("persistentVolumeClaimRetentionPolicy") or {}
    metadata: Object = {
        "name": claim_name(node.name), "namespace": cluster.namespace, "labels": _node_labels(cluster, node)}
    if retention.get("whenDeleted") == "Delete":
        metadata["ownerReferences"] = owner(cluster)
    spec: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": volume["size"]}}}
    if volume.get("storageClassName") is not None:
        spec["storageClassName"] = volume["storageClassName"]
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def node_pod(cluster: Cluster, node: NodeView) -> Object:
    pool = cluster.pool(node.pool)
    assert pool is not None, "only nodes of pools that exist get objects"
    more = pool.get("podMetadata") or {}
    ours = {
        Annotation.REVISION.value: revision(cluster, node.pool),
        Annotation.TEMPLATE.value: template(cluster, node.pool)}
    if cluster.restarted_at:
        ours[Annotation.RESTARTED_FOR.value] = cluster.restarted_at
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": node.name, "namespace": cluster.namespace,
            "labels": {**(more.get("labels") or {}), **_node_labels(cluster, node)},
            "annotations": {**(more.get("annotations") or {}), **ours},
            "ownerReferences": owner(cluster),
        },
        "spec": _pod_spec(cluster, pool, node),
    }


def revision(cluster: Cluster, pool: str) -> str:
    """Return the hash of all in the spec that the pods of a pool are made of; pods of another hash are restarted.

    Hashed is what people wrote, not what is made of it: an operator of another version that makes other pods out of the
    same spec restarts nothing.  A field that joins the lists must not count while it has its default.
    Whoever issues certificates, pods are the same.
    """
    found = cluster.pool(pool)
    if found is None:
        return ""
    spec = cluster.spec
    made_of = {
        **{field: spec.get(field) for field in _REVISION_OF_CLUSTER},
        **{f"pool.{field}": found.get(field) for field in _REVISION_OF_POOL},
        "logging": (spec.get("logging") or {}).get("level"),
        "handover": (spec.get("update") or {}).get("leaderHandoverTimeoutSeconds"),
        "rate": ((spec.get("reconfiguration") or {}).get("throttle") or {}).get("bytesPerSecondPerNode"),
        "tls": "Managed" if issued_elsewhere(spec) else ((spec.get("security") or {}).get("tls") or {}).get("mode"),
        "clients": (spec.get("security") or {}).get("clientAuth"),
    }
    text = json.dumps({field: value for field, value in made_of.items() if value}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def template(cluster: Cluster, pool: str) -> str:
    """Return the hash of what this operator makes of the spec for the pods of a pool, but for the one node."""
    found = cluster.pool(pool)
    made = _pod_spec(cluster, found, NodeView("", 0, pool)) if found is not None else {}
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:10]


def headless_service(cluster: Cluster) -> Object:
    """Names for every node, ready or not."""
    return _service(cluster, nodes_name(cluster.name), {
        "clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector(cluster),
        "ports": [_service_port("client", NODE_PORT), _service_port("http", HTTP_PORT)]}, {})


def client_service(cluster: Cluster) -> Object:
    """Where clients begin: any node that is ready tells them of the others."""
    wanted = cluster.spec.get("service") or {}
    return _service(cluster, cluster.name, {
        "type": wanted.get("type", "ClusterIP"), "selector": selector(cluster),
        "ports": [_service_port("client", NODE_PORT)]}, wanted.get("annotations") or {})


def disruption_budget(cluster: Cluster, nodes: int, unheard: bool = False) -> Object | None:
    """Let one node go at a time; return None where the spec wants no budget, or where the only node could never move.

    Kubernetes counts pods that are not ready itself.  While some copy is `unheard` by its leader though its pod is
    ready, none may go (O45).

    Under `Relocate` it lets none go, ever: an eviction may follow a cordon before the operator has seen the cordon.  A
    label takes pods out of it that their copies have left.
    """
    disruption = cluster.spec.get("disruption") or {}
    if nodes < 2 or disruption.get("podDisruptionBudget", "Managed") != "Managed":
        return None
    relocate = relocates(cluster.spec)
    all_stay = relocate or unheard
    chosen: Object = {"matchLabels": selector(cluster)}
    if relocate:
        chosen["matchExpressions"] = [{"key": Label.RELOCATED.value, "operator": "DoesNotExist"}]
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": metadata_of(cluster, nodes_name(cluster.name)),
        "spec": {"minAvailable": nodes if all_stay else nodes - 1, "unhealthyPodEvictionPolicy": "IfHealthyBudget",
                 "selector": chosen},
    }


# --- parts --------------------------------------------------------------------------------------------------


def _service(cluster: Cluster, name: str, spec: Object, annotations: Mapping[str, str]) -> Object:
    metadata = metadata_of(cluster, name)
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _service_port(name: str, port: int) -> Object:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def _node_labels(cluster: Cluster, node: NodeView) -> dict[str, str]:
    return {**labels(cluster), Label.POOL.value: node.pool, Label.NODE_ID.value: str(node.number)}


def _pod_spec(cluster: Cluster, pool: Mapping[str, Any], node: NodeView) -> Object:
    spec = cluster.spec
    handover_s = (spec.get("update") or {}).get("leaderHandoverTimeoutSeconds", 30)
    made: Object = {
        "hostname": node.name, "subdomain": nodes_name(cluster.name), "restartPolicy": "Always",
        "terminationGracePeriodSeconds": handover_s + GRACE_S,
        "automountServiceAccountToken": False, "enableServiceLinks": False,
        "readinessGates": [{"conditionType": READINESS_GATE}],
        "affinity": _affinity(cluster, pool, node.zone),
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(cluster, pool, node, handover_s)],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": claim_name(node.name)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}}],
    }
    if uses_tls(spec):
        secret = {"secretName": secret_name(cluster.name, "node", node.name), "defaultMode": 0o440}
        made["volumes"].append({"name": "tls", "secret": secret})
    for field, key in (("nodeSelector", "nodeSelector"), ("tolerations", "tolerations"),
                       ("priorityClassName", "priorityClassName")):
        if pool.get(key):
            made[field] = copy.deepcopy(pool[key])
    if spec.get("imagePullSecrets"):
        made["imagePullSecrets"] = [{"name": each["name"]} for each in spec["imagePullSecrets"]]
    return made


def _container(cluster: Cluster, pool: Mapping[str, Any], node: NodeView, handover_s: int) -> Object:
    spec = cluster.spec
    throttle = (spec.get("reconfiguration") or {}).get("throttle") or {}
    rate = max(1, quantity_bytes(throttle.get("bytesPerSecondPerNode") or "100Mi"))
    host = f"{node.name}.{nodes_name(cluster.name)}.{cluster.namespace}.svc"
    arguments = [
        f"--node={node.name}", f"--cluster={cluster.name}", f"--data={DATA_PATH}",
        f"--listen=0.0.0.0:{NODE_PORT}", f"--advertise={host}:{NODE_PORT}", f"--metrics-listen=0.0.0.0:{HTTP_PORT}",
        f"--drain-seconds={handover_s}", f"--snapshot-bytes-per-second={rate}",
        f"--log-level={(spec.get('logging') or {}).get('level', 'info')}",
        *([f"--zone={node.zone}"] if node.zone else ()),
        *([f"--location={node.location}"] if node.location else ()),
        *node_config.arguments(spec, pool),
        *([f"--tls-dir={TLS_PATH}"] if uses_tls(spec) else ()),
    ]
    alive = {"httpGet": {"path": "/livez", "port": "http"}}  # a kubelet's gRPC probe speaks no TLS
    made: Object = {
        "name": "node", "image": spec.get("image") or f"{cluster.node_image}:{spec['version']}",
        "imagePullPolicy": spec.get("imagePullPolicy", "IfNotPresent"), "args": arguments,
        "ports": [{"name": "client", "containerPort": NODE_PORT, "protocol": "TCP"},
                  {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "startupProbe": {**alive, "periodSeconds": 2, "failureThreshold": 900},
        "livenessProbe": {**alive, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "http"},
            "periodSeconds": 5, "timeoutSeconds": 2, "failureThreshold": 2},
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/tidemark"}, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }
    if uses_tls(spec):  # the whole directory: a kubelet replaces no single files
        made["volumeMounts"].append({"name": "tls", "mountPath": TLS_PATH, "readOnly": True})
    resources = pool.get("resources")
    if resources is None:
        resources = DEFAULT_RESOURCES
    if resources:
        made["resources"] = copy.deepcopy(resources)
    return made


def _affinity(cluster: Cluster, pool: Mapping[str, Any], zone: str) -> Object:
    """What the pool asks for, and besides: the node's zone, and no two nodes of a cluster on one machine."""
    domain = cluster.spec.get("failureDomain") or {}
    made: Object = copy.deepcopy(pool.get("affinity") or {})
    if zone:
        here = {"key": domain.get("topologyKey", "topology.kubernetes.io/zone"), "operator": "In", "values": [zone]}
        required = made.setdefault("nodeAffinity", {}).setdefault(
            "requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": [{}]})
        for term in required["nodeSelectorTerms"]:  # one of the terms must hold, and all that stands in it
            term.setdefault("matchExpressions", []).append(here)
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": selector(cluster)}}
    against = made.setdefault("podAntiAffinity", {})
    if domain.get("nodeAntiAffinity", "Required") == "Required":
        against.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(apart)
    else:
        against.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append(
            {"weight": 100, "podAffinityTerm": apart})
    return made
