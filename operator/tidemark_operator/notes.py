"""What the answer to an apply says besides what was done: wishes that change nothing yet, and what to beware of.

Stays out: refusals, which the models and `objects` make, and what a condition shows from then on (`status`).
"""

from __future__ import annotations

from collections.abc import Collection

from .resources import Resource
from .resources.loggroup import Rollback


def notes(resource: Resource, zones: Collection[str]) -> list[str]:
    """Return what to tell whoever applied `resource`; `zones` are those of the nodes that are up."""
    asked = asked_in_vain(resource)
    found = [f"not in force in this release: {'; '.join(asked)}"] if asked else []
    return found + [f"warning: {warning}" for warning in warnings(resource, zones)]


def asked_in_vain(resource: Resource) -> list[str]:
    """Return the fields a manifest sets that change nothing yet, each with what happens instead."""
    if resource.kind != "LogGroup":
        return []
    spec = resource.spec
    found = []
    if spec.replication.copies < spec.replication.factor:
        found.append("spec.replication.payloadCopies: every member keeps every payload")
    if "delivery" in spec.model_fields_set:
        found.append("spec.delivery: readers are served by the leader")
    return found


def warnings(resource: Resource, zones: Collection[str]) -> list[str]:
    """Return the fields that are in force and dangerous, or that the nodes there are now cannot satisfy."""
    if resource.kind != "LogGroup":
        return []
    replication = resource.spec.replication
    found = []
    if replication.rollback is Rollback.IMMEDIATE:
        found.append(
            "spec.replication.rollback: Immediate is unsafe under failover: a record told rolled back may be read "
            "later after all")
    if (replication.synchro_zones or 0) > max(1, len(zones)):  # one member is one zone, named or not
        found.append(
            f"spec.replication.synchroZones: asks for {replication.synchro_zones} zones, the nodes that are up stand "
            f"in {len(zones)}: quorum appends are not confirmed until there are more")
    return found
