"""Records of ranges in the metadata store: written, read, and refused where they are not whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.errors import FormatTooNew, RemoteViolation
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.records import RangeRecord
from tidemark_core.optimistic.ring import Owners, Quorum, Range

numbers = st.integers(0, 2**62)
members = st.builds(Member, st.text(min_size=1), st.text(min_size=1))
owners = st.builds(Owners, st.lists(members, max_size=5).map(tuple), st.builds(Quorum, numbers, numbers, numbers))
ranges = st.builds(Range, numbers, owners, st.none() | owners, numbers)
WHOLE = RangeRecord(Range(3, Owners((Member("n1", "disk"),), Quorum(1, 1, 1)))).encode()


@given(ranges, st.text())
def test_d63_a_record_is_read_as_it_was_written(record: Range, writer: str) -> None:
    assert RangeRecord.decode(RangeRecord(record, writer).encode()) == RangeRecord(record, writer)


@pytest.mark.parametrize("damaged", [
    b"", b"{}", b"[]", WHOLE[:-1], WHOLE.replace(b"own", b"owm"), WHOLE.replace(b'"quorum":[1,1,1]', b'"quorum":[1,1]'),
    WHOLE.replace(b'["n1","disk"]', b'["n1"]'), WHOLE.replace(b'"version":3', b'"version":"x"'),
])
def test_d63_a_record_that_cannot_be_read_is_refused(damaged: bytes) -> None:
    with pytest.raises(RemoteViolation, match="the record of a range cannot be read"):
        RangeRecord.decode(damaged)
    with pytest.raises(FormatTooNew, match="record of a range"):
        RangeRecord.decode(WHOLE.replace(b'"format":1', b'"format":2'))
