"""One store without a node: it takes the rows that a member writes for batches of puts, synced as a node syncs.

The database is opened as a node opens it.  A group is one write of log entries and one of document rows; the next group
is written while a thread syncs the one before.  Nothing is read, checked or decided.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rocksdict import ColumnFamily, Rdict, WriteBatch
from tidemark_core.base.entry import HEADER
from tidemark_core.base.ids import ShardId
from tidemark_core.base.layout import ENTRY_KEY, HEADERS, LOG
from tidemark_core.documents.payload import Op, Outcome, Verdict, Write, Writes, encode, encode_outcomes
from tidemark_core.documents.rows import (
    BYSEQ,
    DOCS,
    EFFECTS,
    SUMMARY,
    Summary,
    byseq_value,
    doc_key,
    encode_row,
    live_row,
    prefix,
    seqno_key,
)
from tidemark_node.database import open_database
from tidemark_node.families import FAMILIES

from .putter import key_of

SHARD = ShardId(1)


class _Rows:
    """The rows of one batch of puts after the other."""

    def __init__(self, database: Rdict, values: list[bytes]) -> None:
        written = (LOG, HEADERS, DOCS, BYSEQ, EFFECTS, SUMMARY)
        self._families: dict[str, ColumnFamily] = {name: database.get_column_family_handle(name) for name in written}
        key = key_of("puts", 0)
        self._payload = encode(Writes(tuple(Write(Op.PUT, key, value) for value in values), True))
        self._rows = [encode_row(live_row(key, 0, 0, value)) for value in values]
        self._effects = encode_outcomes([Outcome(Verdict.APPLIED)] * len(values))
        self._header = bytes(HEADER.size)
        self._summary = Summary().encode()
        self.count = 0

    def group(self, entries: int) -> tuple[WriteBatch, WriteBatch]:
        """Return the log entries of so many batches of puts, and the document rows of the same."""
        log, rows, families, first = WriteBatch(raw_mode=True), WriteBatch(raw_mode=True), self._families, self.count
        for base in range(first, first + entries * len(self._rows), len(self._rows)):
            log.put(ENTRY_KEY.pack(SHARD, base), self._header, families[HEADERS])
            log.put(ENTRY_KEY.pack(SHARD, base), self._payload, families[LOG])
            for number, row in enumerate(self._rows, base):
                key = key_of("puts", number)
                rows.put(doc_key(SHARD, key), row, families[DOCS])
                rows.put(seqno_key(SHARD, number), byseq_value(key, True), families[BYSEQ])
            rows.put(seqno_key(SHARD, base), self._effects, families[EFFECTS])
        rows.put(prefix(SHARD), self._summary, families[SUMMARY])
        self.count += entries * len(self._rows)
        return log, rows


def write(directory: Path, batch_records: int, value_bytes: int, group_bytes: float, seconds: float) -> dict[str, Any]:
    """Write for some seconds and until one sync is over, at least `group_bytes` for each sync; say what was synced."""
    database, _ = open_database(directory, FAMILIES)
    rows = _Rows(database, [os.urandom(value_bytes) for _ in range(batch_records)])
    size = sum(batch.size_in_bytes() for batch in rows.group(1))
    entries = max(1, -(-int(group_bytes) // size))
    rows.count = synced = syncs = 0
    pending: Future[None] | None = None
    began = time.perf_counter()
    with ThreadPoolExecutor(1) as syncing:
        while not syncs or time.perf_counter() < began + seconds:
            for batch in rows.group(entries):
                database.write(batch)
            if pending is not None:
                pending.result()
                synced, syncs = synced + entries * batch_records, syncs + 1
            pending = syncing.submit(database.flush_wal, True)
    took = time.perf_counter() - began
    del rows
    database.close()
    return {"documents": synced, "seconds": took, "syncs": syncs, "group_kib": entries * size / 1024}


def main(directory: str, **how: Any) -> None:
    """Say that we are ready, wait for a line, write, and print what was synced."""
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    print(json.dumps(write(Path(directory), **how)), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
