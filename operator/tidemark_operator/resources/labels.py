"""Labels, annotations and finalizers of the project: what each is called, and what the reference says of it.

Stays out: who writes them, and what follows from one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class _Named(StrEnum):
    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member


class Label(_Named):
    """On objects that the operator makes, except where the reference says otherwise."""

    CLUSTER = "tidemark.dev/cluster", "name of the TidemarkCluster"
    POOL = "tidemark.dev/pool", "node pool of a node's objects"
    NODE_ID = "tidemark.dev/node-id", "number of the node"
    LOG_GROUP = "tidemark.dev/log-group", "name of the LogGroup of a Shard"
    SHARD_ID = "tidemark.dev/shard-id", "index of a Shard in its group"
    RELOCATED = "tidemark.dev/relocated", (
        "`true` on the pod of a node that its copies have left under `onNodeDrain: Relocate`: no budget holds it")
    ETCD_FOR = "tidemark.dev/etcd-for", (
        "written by people on the Secrets that `metadataStore.etcd` names, name of the TidemarkCluster: "
        "the operator takes no others")
    CREATED_BY = "tidemark.dev/created-by", "`operator` on a Reconfiguration that the operator made itself"


class Annotation(_Named):
    """Break-glass: written by people, except where the reference says otherwise."""

    PAUSE = "tidemark.dev/pause-reconciliation", (
        "on any object, `\"true\"`: work on its spec rests; elections, fencing and status go on")
    RESTARTED_AT = "tidemark.dev/restartedAt", (
        "on a TidemarkCluster or one pod, a time: nodes started before it are restarted as in a rollout")
    DELETE_NODE = "tidemark.dev/delete-node", (
        "on a pod, `\"true\"`: the operator creates the NodeSwap that empties the node, with `approval: Required`")
    ROTATE_CA = "tidemark.dev/rotate-ca", (
        "on the Secret `<cluster>-ca`, `\"true\"`: the CA and every certificate are replaced; "
        "the operator takes it off when it begins")
    RESTARTED_FOR = "tidemark.dev/restarted-for", (
        "on a pod, written by the operator: `restartedAt` of the cluster when the pod was made")
    REVISION = "tidemark.dev/revision", "on a pod, written by the operator: hash of the template it runs"
    TEMPLATE = "tidemark.dev/template", (
        "on a pod, written by the operator: hash of what that version of the operator made of the spec")
    INCARNATION = "tidemark.dev/incarnation", "on a volume claim, written by the operator: identity of the disk"


class Finalizer(_Named):
    """There only while something must end before the object may go."""

    RECONFIGURATION = "tidemark.dev/reconfiguration", "on a Reconfiguration between its first move and its last"
    DATA_DELETION = "tidemark.dev/data-deletion", (
        "on a LogGroup or a Keyspace under `deletionPolicy: Delete`, until its data is deleted")


USER_ANNOTATIONS = (Annotation.PAUSE, Annotation.RESTARTED_AT, Annotation.DELETE_NODE)
READINESS_GATE = "tidemark.dev/synced"
MANAGED_BY = "tidemark-operator"
