"""Tasks of mode=changes: each reads the changes of a shard between two places, and so does its retry.

Stays out: which places there are (the readers, facts), which rows are shown (showing), their columns (rows).
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ..connecting import PATIENCE_S, Cluster
from ..options import Options
from ..pin_lease import Pinned, renewed
from .position import BEGINNING, Position, Stretch, stretches

if TYPE_CHECKING:
    import pyarrow as pa
    from tidemark import Document
    from tidemark.sync import SyncClient, SyncDocuments

    from .showing import Row

log = logging.getLogger("pyspark_tidemark")

ROW_BYTES = 100
"""Counted for a row beside its value."""


class ChangesLost(RuntimeError):
    """Changes of a query cannot be read any more, or its history is not the shard's."""


class ChangesPartition(InputPartition):
    """The changes that one task reads, and the pins of both ends; a query without barriers has none."""

    def __init__(
        self, cluster: Cluster, stretch: Stretch, start_pin: Pinned | None, end_pin: Pinned | None
    ) -> None:
        super().__init__(stretch.shard)
        self.cluster = cluster
        self.stretch = stretch
        self.start_pin = start_pin
        self.end_pin = end_pin


def tasks_between(cluster: Cluster, start: Position, end: Position, pinned_at: float) -> list[ChangesPartition]:
    """Return the tasks of a batch: the same ones whenever it is planned again (P6).  Raises ShardGone."""
    start_pin, end_pin = (
        Pinned(each.pin, each.pinned(), pinned_at) if each.pin and end.pin else None for each in (start, end))
    return [ChangesPartition(cluster, each, start_pin, end_pin) for each in stretches(start, end)]


def rows_of(
    partition: InputPartition | None, options: Options, schema: StructType, *, releases: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; with `releases` the pin ends soon behind it.

    Raises ChangesLost, UnreadableRows, TidemarkError.
    """
    if not isinstance(partition, ChangesPartition):
        return
    from ..gathering import gathered
    from .rows import HISTORY_ID, Rows

    group, shard = options.group, partition.stretch.shard
    with partition.cluster.connect() as client, client.documents(group, timeout_s=PATIENCE_S) as documents:
        histories = documents.describe(shards=[shard])[shard].failover_log if HISTORY_ID in schema.names else ()
        rows = Rows(group, shard, schema, histories)
        with ExitStack() as leases:
            for pin in (partition.start_pin, partition.end_pin):
                if pin is not None:
                    leases.enter_context(
                        renewed(client, group, pin, shard, options.pin_lease_s, releases=releases))
            shown = leases.enter_context(closing(_shown(client, documents, partition, options)))
            for together in gathered(shown, _size):
                yield rows.of([row for some in together for row in some])


def _size(rows: Sequence[Row]) -> int:
    return sum(len(row.key) + len(row.value or b"") + ROW_BYTES for row in rows)


def _shown(
    client: SyncClient, documents: SyncDocuments, partition: ChangesPartition, options: Options
) -> Generator[list[Row], None, None]:
    from tidemark import Cut
    from tidemark.errors import ChangesFailed

    from .showing import Showing

    group, (shard, start, end) = options.group, partition.stretch
    from_ = "beginning" if start == BEGINNING else documents.position({
        shard: Cut(start.seqno, start.epoch, bytes.fromhex(start.lineage))})
    pins = None
    if partition.end_pin is not None:
        pins = AtPins(documents, shard, partition.start_pin, partition.end_pin)
    showing = Showing(start.seqno, end.seqno, pins)
    with client.changes(
        group, from_=from_, shards=[shard], on_lost="fail" if options.fail_on_data_loss else "rebuild",
    ) as changes:
        try:
            yield from showing.rows(changes.batches(timeout_s=PATIENCE_S))
        except ChangesFailed as error:
            raise ChangesLost(
                f"shard {shard} of group {group!r}: {error.message}. Give the query a new checkpoint, or "
                "failOnDataLoss=false, with which it shows all documents of the shard again.") from error
    if showing.ended:
        log.warning(
            "shard %d of group %r: the pin of this batch has ended: documents that were written again meanwhile "
            "come in a later batch", shard, group)


class AtPins:
    """The documents of one shard at the pins of a batch's ends."""

    def __init__(self, documents: SyncDocuments, shard: int, start: Pinned | None, end: Pinned) -> None:
        self._documents = documents
        self._shard = shard
        self._start = start
        self._end = end

    def at_end(self, keys: Sequence[bytes]) -> Mapping[bytes, Document] | None:
        """Return the documents of these keys at the end, None where the pin has ended."""
        return self._at(self._end, keys)

    def at_start(self, keys: Sequence[bytes]) -> Mapping[bytes, Document]:
        """Return the documents of these keys at the start, none where the pin has ended or there was none."""
        return (self._at(self._start, keys) if self._start is not None else None) or {}

    def _at(self, pin: Pinned, keys: Sequence[bytes]) -> Mapping[bytes, Document] | None:
        from tidemark.errors import NotPinned

        if self._shard not in pin.seqnos:   # it was added behind this pin
            return None
        try:
            return self._documents.pin_at(pin.name, {self._shard: pin.seqnos[self._shard]}).get_many(keys)
        except NotPinned:
            return None
