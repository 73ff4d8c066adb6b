"""What a LogGroup may ask for and this release does not do yet: refused where a user would be less safe than asked,
named in the answer where nothing is lost by it.

Stays out: everything that is in force.
"""

from __future__ import annotations

from tidemark_core.base.quorum import majority
from tidemark_core.base.refusals import Reason, Refused

from .resources import Resource, quorum_in_force


def refuse_unsafe(resource: Resource) -> Refused | None:
    """Refuse a quorum above the majority: appends would be confirmed with fewer copies than asked for."""
    if resource.kind != "LogGroup":
        return None
    replication = resource.spec.replication
    asked, given = quorum_in_force(replication.synchro_quorum, replication.factor), majority(replication.factor)
    if asked <= given:
        return None
    return Refused(
        Reason.INVALID_SPEC,
        f"LogGroup/{resource.name}: spec.replication.synchroQuorum asks for {asked} of {replication.factor} copies, "
        f"this release confirms at a majority ({given}): leave it unset",
    )


def asked_in_vain(resource: Resource) -> list[str]:
    """Return the fields a manifest sets that change nothing yet, each with what happens instead."""
    if resource.kind != "LogGroup":
        return []
    spec = resource.spec
    found = []
    if spec.replication.copies < spec.replication.factor:
        found.append("spec.replication.payloadCopies: every member keeps every payload")
    if "retention" in spec.model_fields_set:
        found.append("spec.retention: nothing is removed")
    if "delivery" in spec.model_fields_set:
        found.append("spec.delivery: readers are served by the leader")
    return found
