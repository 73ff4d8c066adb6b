"""Readers of the changes of a group on the fake cluster, for the tests of this folder."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from pyspark_tidemark import DefaultSource
from pyspark_tidemark.changes.reader import ChangesReader
from pyspark_tidemark.changes.stream import ChangesStreamReader
from pyspark_tidemark.changes.tasks import ChangesPartition

from tests.fake_in_a_thread import FakeInAThread

from ..groups import THINGS

Shown = tuple[int, int, str, bytes, bytes | None]
"""Shard, seqno, op, key and value of a row."""


def source_of(fake: FakeInAThread, **options: str) -> DefaultSource:
    return DefaultSource({
        "endpoints": ",".join(fake.cluster.addresses()), "group": THINGS, "mode": "changes", **options})


def reader_of(fake: FakeInAThread, **options: str) -> ChangesReader:
    source = source_of(fake, **options)
    reader = source.reader(source.schema())
    assert isinstance(reader, ChangesReader)
    return reader


def stream_of(fake: FakeInAThread, **options: str) -> ChangesStreamReader:
    source = source_of(fake, **options)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, ChangesStreamReader)
    return reader


def rows(reader: ChangesReader | ChangesStreamReader, partitions: Sequence[ChangesPartition]) -> list[Shown]:
    """Read partitions as tasks do: the reader and the partition are pickled on their way."""
    found = []
    for partition in partitions:
        copy, task = pickle.loads(pickle.dumps((type(reader)(reader._options, reader._schema), partition)))
        for batch in copy.read(task):
            found += [
                (row["shard"], row["seqno"], row["op"], row["key"], row["value"]) for row in batch.to_pylist()]
    return found


def applied(state: dict[bytes, bytes], found: Sequence[Shown]) -> dict[bytes, bytes]:
    """Return a view to which the rows of a batch were applied."""
    state = dict(state)
    for _, _, op, key, value in sorted(found):
        if op == "PUT":
            assert value is not None
            state[key] = value
        else:
            assert op in ("DELETE", "EXPIRE") and value is None
            state.pop(key, None)
    return state
