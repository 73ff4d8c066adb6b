"""Pools of a cluster: like nodes, where they run and what they store on.

Stays out: how the operator treats them (`policies`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from .base import (
    ATOMIC,
    SET,
    AnnotationValue,
    ApiModel,
    ConfigValue,
    LabelValue,
    LocationLabel,
    Name,
    OpenObject,
    Quantity,
    Transition,
    Zone,
    immutable,
    quantity_bytes,
)


class Volume(ApiModel):
    size: Quantity = Field(description="Requested size. Can only grow.")
    storage_class_name: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None,
        description="Storage class; empty string means static provisioning, unset means the cluster default.",
    )

    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (
        Transition(
            cel="quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
            message="a volume can be expanded, never shrunk: add a node pool and swap the nodes instead",
            allows=lambda new, old: quantity_bytes(new.size) >= quantity_bytes(old.size),
            field="size",
        ),
        immutable("storage_class_name", optional=True, hint="add a node pool and swap the nodes instead"),
    )


class Storage(ApiModel):
    """Volumes of a node."""

    data: Volume = Field(description="Volume of the log and its metadata.")


class PodMetadata(ApiModel):
    labels: dict[str, LabelValue] | None = Field(default=None, max_length=32, description="Added to the operator's.")
    annotations: dict[str, AnnotationValue] | None = Field(
        default=None, max_length=64, description="Added to those of the operator."
    )


class PoolLocation(ApiModel):
    region: LocationLabel | None = Field(default=None, description="The widest scope; the zone lies inside it.")
    cluster: LocationLabel | None = Field(default=None, description="A part of the zone.")
    row: LocationLabel | None = Field(default=None, description="A part of the cluster.")
    rack: LocationLabel | None = Field(default=None, description="A part of the row: the narrowest scope.")


class NodePool(ApiModel):
    name: Name = Field(description="Pool name; part of labels, not of node names.")
    replicas: Annotated[int, Field(ge=0, le=128)] = Field(description="Desired number of nodes.")
    zones: Annotated[tuple[Zone, ...], Field(max_length=16), *SET] | None = Field(
        default=None,
        description="Failure domains that the nodes of this pool are dealt to, evenly. "
        "Unset: chosen by the scheduler; in the local runtime every node is a domain of its own.",
    )
    location: PoolLocation | None = Field(
        default=None,
        description="Where all nodes of this pool stand beside their zone; reading near a location goes by it.",
    )
    storage: Storage
    resources: OpenObject | None = Field(
        default=None,
        description="corev1.ResourceRequirements of the node container. "
        "Unset: requests of 250m CPU and 512Mi memory, no limits.",
    )
    node_selector: dict[str, LabelValue] | None = Field(
        default=None, max_length=32, description="Labels of the Kubernetes nodes that may run this pool."
    )
    tolerations: Annotated[tuple[OpenObject, ...], Field(max_length=32), ATOMIC] | None = Field(
        default=None, description="corev1.Toleration list."
    )
    affinity: OpenObject | None = Field(
        default=None, description="corev1.Affinity, merged under the zone affinity of the operator."
    )
    priority_class_name: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None, description="Priority class of the pods."
    )
    pod_metadata: PodMetadata | None = Field(default=None, description="Extra pod labels and annotations.")
    config: dict[str, ConfigValue] | None = Field(
        default=None, max_length=128, description="Node configuration that overrides spec.config."
    )
