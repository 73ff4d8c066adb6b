"""Resuming: the rows of a shard that are left to append, where an attempt before may have appended the first of them.

Position alone would double rows and lose others where the plan of a query gives other rows each time, so the rows that
are there already are compared by checksum (P15).  Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tally import Noted, Tally

if TYPE_CHECKING:
    import pyarrow as pa

ADVICE = (
    "Rows of a retry must be those of the attempt before: write the result of the query to a checkpoint "
    "(df.checkpoint(), df.persist()) or to files first, sort it before a limit, and leave rand(), uuid() and "
    "current_timestamp() out of it")


class NondeterministicRetry(RuntimeError):
    """Rows of this attempt differ from those that an attempt before has appended; it appended nothing there."""


class BatchPassed(RuntimeError):
    """The sink has a newer batch than the one to write: this query is not the one that wrote last."""


class Resuming:
    """One shard's rows of one part of a batch."""

    def __init__(self, where: str, batch: int, noted: Noted | None) -> None:
        """`where` names the part and the shard in errors.  Raises BatchPassed."""
        if noted is not None and noted.batch > batch:
            raise BatchPassed(
                f"{where} has batch {noted.batch} already, and this is batch {batch}: two queries write under one "
                "id, or the query lost its checkpoint. Give it back its checkpoint, or start it with a new one.")
        self._where = where
        self._batch = batch
        self.begun = noted is not None and noted.batch == batch
        self._there = noted.tally if noted is not None and self.begun else Tally()
        self.tally = Tally()

    def left(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return what of the next rows is not there yet.  Raises NondeterministicRetry."""
        known = min(columns.num_rows, self._there.rows - self.tally.rows)
        if known <= 0:
            return columns
        self.tally.add(columns.slice(0, known))
        if self.tally.rows == self._there.rows:
            self._compare()
        return columns.slice(known)

    def end(self) -> None:
        """There are no more rows.  Raises NondeterministicRetry where more of them are in the log."""
        if self.tally.rows < self._there.rows:
            self._compare()

    def note(self, columns: pa.RecordBatch) -> bytes:
        """Count rows in that are about to be appended, and return the note that goes along."""
        self.tally.add(columns)
        return self.tally.note(self._batch)

    def _compare(self) -> None:
        if self.tally != self._there:
            raise NondeterministicRetry(
                f"NONDETERMINISTIC_RETRY: {self._where} has {self._there.rows} rows of batch {self._batch} from an "
                f"attempt before, and the first {self.tally.rows} of this attempt differ. {ADVICE}.")
