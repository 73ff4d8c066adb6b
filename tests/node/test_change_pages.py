"""Pages of change scans, over rows in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tidemark_core.base.ids import shard_id
from tidemark_core.documents.rows import BYSEQ, DOCS, byseq_value, doc_key, encode_row, live_row, seqno_key
from tidemark_node.change_pages import page

SHARD = shard_id(7, 0)
PAGE = 256 << 10


class Documents:
    """Documents with seqnos from 1 on, as rows of the newest state and of a snapshot."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.docs: dict[bytes, bytes] = {}
        self.index: list[tuple[bytes, bytes]] = []
        self.fetched: list[int] = []
        """The bytes that lay in memory at once."""
        for seqno, size in enumerate(sizes, 1):
            key = b"k%d" % (len(sizes) - seqno)
            self.docs[doc_key(SHARD, key)] = encode_row(live_row(key, seqno, 0, bytes(size)))
            self.index.append((seqno_key(SHARD, seqno), byseq_value(key, live=True)))

    def each(self, family: str, first: bytes, behind: bytes) -> Iterator[tuple[bytes, bytes]]:
        assert family == BYSEQ
        return (row for row in self.index if first <= row[0] < behind)

    def many(self, keys: Sequence[tuple[str, bytes]]) -> list[bytes | None]:
        assert {family for family, _ in keys} == {DOCS}
        found = [self.docs[key] for _, key in keys]
        self.fetched.append(sum(map(len, found)))
        return list(found)


def pages(documents: Any, last: int) -> Iterator[Any]:
    through = 0
    while through < last:
        found = page(documents, documents, SHARD, through, last, PAGE)
        assert found.through > through
        through = found.through
        yield found


def test_t12_large_documents_behind_small_ones_come_a_few_at_once() -> None:
    sizes = [10] * 8 + [3 << 20] * 40 + [10] * 2_000 + [3 << 20]
    documents = Documents(sizes)
    seqnos: list[int] = []
    for found in pages(documents, len(sizes)):
        small = found.size - (3 << 20)
        assert small < PAGE, "no row comes behind the one that reaches the bound"
        seqnos += [row.seqno for row in found.rows]
    assert seqnos == list(range(1, len(sizes) + 1))
    assert max(documents.fetched) < 9 * (3 << 20)


def test_a_page_without_another_row_goes_to_the_end_that_is_asked_for() -> None:
    documents = Documents([10, 10])
    assert [(len(found.rows), found.through) for found in pages(documents, 9)] == [(2, 9)]
    assert [(len(found.rows), found.through) for found in pages(Documents([PAGE, 10]), 2)] == [(1, 1), (1, 2)]
