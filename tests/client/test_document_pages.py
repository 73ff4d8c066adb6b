"""Pages of a scan as nodes send them: columns, or the messages of a node that does not know columns."""

from __future__ import annotations

import pytest
from tidemark import Document
from tidemark.arrow import DOCUMENTS
from tidemark.document_scans import Page
from tidemark.errors import Unavailable
from tidemark_wire.document_columns import pack
from tidemark_wire.v1 import documents_pb2 as wire

FOUND = [
    Document(b"a", b"one", 7, 3), Document(b"b", b"", 2**62, 3, 1_700_000_000_000),
    Document(b"\xff\x00", b"x" * 999, 9, 3)]


def in_columns(found: list[Document]) -> wire.ScanDocumentsPage:
    page = wire.ScanDocumentsPage()
    page.columns.CopyFrom(pack(
        [each.key for each in found], [each.value for each in found], [each.seqno for each in found],
        [each.expires_at_ms for each in found]))
    return wire.ScanDocumentsPage.FromString(page.SerializeToString())


def in_messages(found: list[Document]) -> wire.ScanDocumentsPage:
    return wire.ScanDocumentsPage(documents=[
        wire.Document(key=each.key, value=each.value, seqno=each.seqno, expires_at_ms=each.expires_at_ms)
        for each in found])


@pytest.mark.parametrize("found", [FOUND, FOUND[:1], FOUND[1:2], []], ids=["some", "never", "expires", "none"])
def test_columns_and_messages_are_the_same_documents(found: list[Document]) -> None:
    for sent in (in_columns(found), in_messages(found)):
        page = Page.of(3, sent)
        assert list(page) == found and len(page) == len(found)
        assert page.record_batch.schema == DOCUMENTS
        assert page.record_batch.to_pylist() == [
            {"shard": 3, "key": each.key, "value": each.value, "seqno": each.seqno,
             "expires_at_ms": each.expires_at_ms or None} for each in found]
    if found:
        assert page.last_key == found[-1].key
        assert list(page[1:]) == found[1:]


@pytest.mark.parametrize(("field", "changed"), [
    ("count", 4), ("count", 2**31), ("key_offsets", b""), ("key_offsets", bytes(4)), ("value_offsets", bytes(20)),
    ("seqnos", bytes(16)), ("expires_at_ms", bytes(8)), ("keys", b"a"), ("values", b""),
    ("key_offsets", b"\0\0\0\0\x02\0\0\0\x01\0\0\0\x04\0\0\0"), ("value_offsets", b"\xff\xff\xff\xff" + bytes(12)),
])
def test_columns_that_do_not_fit_together_are_no_page(field: str, changed: object) -> None:
    sent = in_columns(FOUND)
    setattr(sent.columns, field, changed)
    with pytest.raises(Unavailable, match="a page of shard 3 cannot be read"):
        Page.of(3, sent)
