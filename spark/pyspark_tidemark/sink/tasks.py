"""Tasks of the sink: each appends the rows of one part of a batch, and goes on where an attempt before it ended.

Each part is a claimed producer of its own: of two attempts at once the newer one fences the older (L26).
Stays out: which batch it is (writers).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..connecting import PATIENCE_S, Cluster, group_of
from ..schema import Mode
from .parts import Batch, PartEnd, Written

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa
    from tidemark import AppendedRange, Resumed
    from tidemark.sync import SyncAppender, SyncClient

    from .marking import Joining
    from .resuming import Resuming
    from .spreading import Spreading

log = logging.getLogger("pyspark_tidemark")

BATCH_BYTES = 512 << 10
"""Bytes of columns that one append takes."""

UNANSWERED_MAX = 32
"""Appends of a task that wait for their answers."""


def write(cluster: Cluster, group: str, batch: Batch, part: int, rows: Iterable[pa.RecordBatch]) -> Written:
    """Append the rows of a part, those that are not there yet.

    Raises NondeterministicRetry, BatchPassed, UnwritableRows, UnreadableNote, TidemarkError.
    """
    from tidemark import QUORUM, ProducerId

    from .marking import Joining
    from .spreading import Spreading

    with cluster.connect() as client:
        found = group_of(client, group, Mode.LOG)
        producer = ProducerId(f"spark:{batch.sink}/{part}")
        with client.appender(group, producer=producer, durability=QUORUM, timeout_s=PATIENCE_S) as appender:
            claimed = appender.claimed()
            where = f"part {part} of sink {batch.sink!r} in group {group!r}"
            shards = {
                shard: _resuming(client, group, f"{where}, shard {shard},", batch.number, resumed)
                for shard, resumed in claimed.items()}
            last = {
                shard: resumed.last.last for shard, resumed in claimed.items()
                if resumed.last is not None and shards[shard].begun}
            joining = Joining(client, group, batch, part)
            return _Task(appender, shards, last, joining).write(rows, Spreading(found, part), Written(batch, part))


def _resuming(client: SyncClient, group: str, where: str, number: int, resumed: Resumed) -> Resuming:
    """Find what the attempt before had appended, by the note of its newest batch."""
    from tidemark.errors import Trimmed

    from .resuming import Resuming
    from .tally import Noted

    noted, last = None, resumed.last
    if last is not None:
        try:
            [batch] = client.read(group, shards=[resumed.shard], from_=last.last, until=last.last).batches()
            noted = Noted.of(batch.note)
        except Trimmed:
            log.warning("%s retention has removed what was written last: the part begins with its first row", where)
    return Resuming(where, number, noted)


class _Task:
    """The appends of one part; `last` has the offset of its last row in each shard."""

    def __init__(
        self, appender: SyncAppender, shards: dict[int, Resuming], last: dict[int, int], joining: Joining
    ) -> None:
        self._appender = appender
        self._shards = shards
        self._last = last
        self._joining = joining
        self._unanswered: deque[Future[AppendedRange]] = deque()

    def write(self, rows: Iterable[pa.RecordBatch], spreading: Spreading, written: Written) -> Written:
        from .columns import stored_form

        for batch in rows:
            for shard, columns in spreading.of(stored_form(batch, spreading.rows)):
                resuming = self._shards[shard]
                for some in _divided(resuming.left(columns)):
                    self._append(shard, some, resuming.note(some))
        for resuming in self._shards.values():
            resuming.end()
        while self._unanswered:
            self._answered()
        written.rows = spreading.rows
        for shard, last in self._last.items():
            tally = self._shards[shard].tally
            written.ends[shard] = PartEnd(last, tally.rows, tally.checksum)
        return written

    def _append(self, shard: int, columns: pa.RecordBatch, note: bytes) -> None:
        self._joining.join()
        if len(self._unanswered) == UNANSWERED_MAX:
            self._answered()
        self._unanswered.append(self._appender.append_arrow_later(columns, shard=shard, note=note))

    def _answered(self) -> None:
        place = self._unanswered.popleft().result()
        self._last[place.shard] = place.last


def _divided(columns: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    """Yield rows in parts of about BATCH_BYTES, each of at least one row."""
    if not columns.num_rows:
        return
    most = max(1, columns.num_rows * BATCH_BYTES // max(1, columns.nbytes))
    for first in range(0, columns.num_rows, most):
        yield columns.slice(first, most)
