"""Rows of a backup as files need them: columns, order and digests; each kind of backup has its own.

Stays out: files (files), the rows of documents and of keyspaces (document_rows, cell_rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

MODULUS = 1 << 128
T = TypeVar("T")


class Tally(NamedTuple):
    """Rows, and what they add to the digests of their shard or range."""

    rows: int = 0
    digest: int = 0
    content: int = 0


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """One kind of rows.  `rows_of` reads a batch of a shard or range, and may raise UndecodablePayload.

    In a file keys ascend.  `digests_of` returns what a row adds to the digest and to the content digest.
    """

    schema: pa.Schema
    batch_of: Callable[[list[T]], pa.RecordBatch]
    rows_of: Callable[[int, pa.RecordBatch], Iterable[T]]
    key_of: Callable[[T], bytes]
    digests_of: Callable[[T], tuple[int, int]]

    def tally(self, before: Tally, rows: Iterable[T]) -> Tally:
        """Return a tally with more rows in it."""
        count, digest, content = before
        for each in rows:
            more, more_content = self.digests_of(each)
            count, digest, content = count + 1, digest + more, content + more_content
        return Tally(count, digest % MODULUS, content % MODULUS)
