"""Judging: whether a part may join a batch, and whether a batch may be marked (rules W1 and W2).

Stays out: leases and bounds (`fold`), confirming the record (`replication.sinks`).
"""

from __future__ import annotations

from typing import NamedTuple

from ..base.refusals import Reason
from .fold import Join, Mark, Sink


class Verdict(NamedTuple):
    """`refused` is None where the change may be; it is in the log already where it is `known`."""

    known: bool = False
    marked: bool = False    # the batch of a join is complete
    refused: Reason | None = None
    message: str = ""


def judge(sink: Sink | None, batch: int, change: Join | Mark) -> Verdict:
    """Judge a change of a batch by how far its sink has come."""
    if sink is None or batch > sink.batch:
        return Verdict()
    if batch < sink.batch:
        return Verdict(refused=Reason.BATCH_PASSED, message=f"the sink has come to batch {sink.batch}")
    marked = batch == sink.marked
    match change:
        case Join(part) if marked and part >= sink.parts:
            return Verdict(
                refused=Reason.PART_LEFT_OUT,
                message=f"batch {batch} was marked with {sink.parts} parts, part {part} is none of them")
        case Join(part):
            return Verdict(marked or bool(sink.joined >> part & 1), marked)
        case Mark(parts, shards) if marked:
            if (sink.parts, sink.marks()) == (parts, shards):
                return Verdict(known=True)
            if parts < sink.parts:
                return Verdict(
                    refused=Reason.PART_LEFT_OUT,
                    message=f"batch {batch} was marked with {sink.parts} parts, {parts} are named")
            return Verdict(
                refused=Reason.BATCH_PASSED,
                message=f"batch {batch} was marked with other parts or other ends in its shards")
        case Mark(parts, _):
            if not (left_out := sink.joined >> parts):
                return Verdict()
            part = parts + (left_out & -left_out).bit_length() - 1
            return Verdict(
                refused=Reason.PART_LEFT_OUT,
                message=f"part {part} has joined batch {batch}, of which {parts} parts are named")
