"""What is shown of a Reconfiguration: its plan, its progress, its moves.

Stays out: computing it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from .base import (
    ATOMIC,
    ApiModel,
    Conditions,
    ConfigValue,
    Count,
    LongCount,
    Name,
    ObservedGeneration,
    Timestamp,
)


class Stage(StrEnum):
    QUEUED = "Queued"
    PLANNING = "Planning"
    AWAITING_APPROVAL = "AwaitingApproval"
    PROVISIONING = "Provisioning"
    MOVING = "Moving"
    SUSPENDED = "Suspended"
    ABORTING = "Aborting"
    CLEANING_UP = "CleaningUp"
    FINISHED = "Finished"


class MoveOperation(StrEnum):
    SWAP = "Swap"
    EXPAND = "Expand"
    CONTRACT = "Contract"
    LEADER_TRANSFER = "LeaderTransfer"
    RECOVER = "Recover"


class MoveStep(StrEnum):
    PENDING = "Pending"
    LEADER_TRANSFER = "LeaderTransfer"
    PREPARE = "Prepare"
    SNAPSHOT = "Snapshot"
    VERIFY = "Verify"
    COMMIT = "Commit"
    CLEANUP = "Cleanup"
    DONE = "Done"
    ABORTING = "Aborting"
    FAILED = "Failed"


class PlanStatus(ApiModel):
    """What the act comes to."""

    moves: Count = Field(default=0, description="How many moves.")
    bytes: Annotated[str, StringConstraints(max_length=32)] | None = Field(
        default=None,
        description="What they copy: what nodes say they hold, and what a snapshot has once its move began. "
        "Unset: not all of it is known, and a warning says of which shards.",
    )
    hash: Annotated[str, StringConstraints(max_length=80)] | None = Field(
        default=None, description="Names the set of moves; approvedPlan quotes it."
    )
    metadata_revision: LongCount | None = Field(default=None, description="etcd revision that the plan was made from.")
    warnings: (
        Annotated[tuple[Annotated[str, StringConstraints(max_length=512)], ...], Field(max_length=16), ATOMIC] | None
    ) = Field(default=None, description="What to know before approving.")


class Progress(ApiModel):
    """How far it is."""

    completed: Count = Field(default=0, description="Moves that are done.")
    in_progress: Count = Field(default=0, description="Moves that run.")
    failed: Count = Field(default=0, description="Moves that were given up.")
    bytes_moved: Annotated[str, StringConstraints(max_length=32)] | None = Field(
        default=None, description="What was copied."
    )
    percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None, description="Share of the work that is done."
    )
    summary: Annotated[str, StringConstraints(max_length=24)] | None = Field(
        default=None, description='"completed/moves".'
    )
    estimated_completion_time: Timestamp | None = Field(
        default=None, description="When it may be done, if it goes on like that."
    )


class Move(ApiModel):
    """One change of one shard."""

    kind: Literal["LogGroup", "Keyspace"] = Field(description="What is changed.")
    name: Name = Field(description="Name of the LogGroup or of the Keyspace.")
    shard: LongCount = Field(description="Index of the shard, or of the partition.")
    from_: Name | None = Field(default=None, alias="from", description="Node that leaves, or hands leadership over.")
    to: Name | None = Field(default=None, description="Node that joins, or leads.")
    operation: MoveOperation | None = Field(default=None, description="What the move does.")
    step: MoveStep = Field(description="How far it is.")
    attempt: Count | None = Field(default=None, description="Counts its tries.")
    start_time: Timestamp | None = Field(default=None, description="When it started.")
    message: ConfigValue | None = Field(default=None, description="Why the last try failed.")


Moves = Annotated[tuple[Move, ...], Field(max_length=16), ATOMIC]


class ReconfigurationStatus(ApiModel):
    """How the act goes."""

    observed_generation: ObservedGeneration | None = None
    stage: Stage | None = Field(default=None, description="What the act is at.")
    start_time: Timestamp | None = Field(default=None, description="When planning began.")
    completion_time: Timestamp | None = Field(default=None, description="When it ended.")
    target_node: Name | None = Field(default=None, description="Node that was provisioned.")
    fencing_term: LongCount | None = Field(
        default=None, description="Term of the reconfiguration lock in the metadata store."
    )
    plan: PlanStatus | None = None
    progress: Progress | None = None
    active_moves: Moves | None = Field(default=None, description="At most 16 of them.")
    failed_moves: Moves | None = Field(default=None, description="At most 16 of them.")
    conditions: Conditions | None = None
