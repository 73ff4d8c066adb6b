"""Marking: a part joins its batch before its first append, and the driver marks the batch when all have ended (P16).

Stays out: the rows of a part (tasks), the protocol's rules (W1-W5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from google_crc32c import extend

from ..connecting import PATIENCE_S, Cluster
from .parts import Batch, Written
from .resuming import ADVICE, BatchPassed, NondeterministicRetry

if TYPE_CHECKING:
    from tidemark import SinkEnd
    from tidemark.errors import RequestRefused
    from tidemark.sync import SyncClient


class Joining:
    """One part of a batch, which joins it at most once."""

    def __init__(self, client: SyncClient, group: str, batch: Batch, part: int) -> None:
        self._client = client
        self._group = group
        self._batch = batch
        self._part = part
        self._joined = False

    def join(self) -> None:
        """Join before the first append, and only then: an attempt without rows need not be repeated.

        Raises NondeterministicRetry where the batch is complete without these rows, BatchPassed, TidemarkError.
        """
        if self._joined:
            return
        from tidemark.errors import RequestRefused

        try:
            marked = self._client.sinks(self._group).join(
                self._batch.sink, self._batch.number, self._part, lease_s=self._batch.lease_s, timeout_s=PATIENCE_S)
        except RequestRefused as error:
            raise _meant(error, self._where()) from error
        if marked:
            raise NondeterministicRetry(
                f"NONDETERMINISTIC_RETRY: {self._where()} has rows that are not in the log, and the batch is complete "
                f"without them. {ADVICE}.")
        self._joined = True

    def _where(self) -> str:
        return f"part {self._part} of batch {self._batch.number} of sink {self._batch.sink!r} in group {self._group!r}"


def mark(cluster: Cluster, group: str, written: Sequence[Written]) -> None:
    """Mark the batch of these parts, which are all of it, as complete.

    Raises NondeterministicRetry where another attempt had more parts with rows, BatchPassed, TidemarkError.
    """
    if not written:
        return
    from tidemark.errors import RequestRefused

    batch = written[0].batch
    with cluster.connect() as client:
        try:
            client.sinks(group).mark(
                batch.sink, batch.number, len(written), ends_of(written), lease_s=batch.lease_s, timeout_s=PATIENCE_S)
        except RequestRefused as error:
            where = f"batch {batch.number} of sink {batch.sink!r} in group {group!r}"
            raise _meant(error, f"{where}, written in {len(written)} parts,") from error


def ends_of(written: Sequence[Written]) -> list[SinkEnd]:
    """Return where the rows of all parts end in each shard."""
    from tidemark import SinkEnd

    found: dict[int, SinkEnd] = {}
    for each in sorted(written, key=lambda each: each.part):
        for shard, end in each.ends.items():
            before = found.get(shard, SinkEnd(shard, -1, 0, 0))
            checksum = extend(before.checksum, end.checksum.to_bytes(4))
            found[shard] = SinkEnd(shard, max(before.last, end.last), before.rows + end.rows, checksum)
    return list(found.values())


def _meant(error: RequestRefused, where: str) -> Exception:
    """Return what a refusal means to a query; others stay as they are."""
    if error.reason == "PART_LEFT_OUT":
        return NondeterministicRetry(
            f"NONDETERMINISTIC_RETRY: {where} was written before with other parts: {error.message}. Write it with as "
            f"many tasks as before. {ADVICE}.")
    if error.reason == "BATCH_PASSED":
        return BatchPassed(f"{where} cannot be written any more: {error.message}")
    return error
