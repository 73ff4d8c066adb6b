"""The failover log: which epoch of which lineage wrote a seqno (rule U54)."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.upr.history import ENTRIES_MAX, FailoverLog, Opening, Point, history_id

LINEAGE = bytes(range(16))
OTHER = bytes(range(16, 32))


def log_of(*heads: int, lineage: bytes = LINEAGE) -> FailoverLog:
    log = FailoverLog()
    for epoch, head in enumerate(heads, 1):
        log = log.opened(epoch, lineage, head)
    return log


@given(st.binary(min_size=16, max_size=16), st.integers(1, (1 << 63) - 1))
def test_u54_a_history_id_is_the_uuid5_of_lineage_and_epoch(lineage: bytes, epoch: int) -> None:
    assert history_id(lineage, epoch) == uuid.uuid5(uuid.UUID(bytes=lineage), str(epoch)).bytes


def test_u54_one_epoch_of_two_lineages_is_two_histories() -> None:
    assert history_id(LINEAGE, 2) != history_id(OTHER, 2)
    assert history_id(LINEAGE, 2) != history_id(LINEAGE, 3)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=ENTRIES_MAX - 1), st.integers(0, 300))
def test_u54_a_seqno_belongs_to_the_epoch_that_wrote_it(steps: list[int], seqno: int) -> None:
    """Replay: each epoch writes what lies above its inherited head and not above the next one's."""
    heads = [-1]
    for step in steps:
        heads.append(heads[-1] + step)
    wrote = max(epoch for epoch, head in enumerate(heads, 1) if head < seqno)

    assert log_of(*heads).id_at(seqno) == Opening(wrote, LINEAGE, heads[wrote - 1])
    assert log_of(*heads).point(seqno) == Point(LINEAGE, wrote, seqno)


def test_u54_the_newest_25_openings_are_kept() -> None:
    log = log_of(*range(-1, 39))

    assert [opening.epoch for opening in log.openings] == list(range(40, 15, -1))
    assert len(log.openings) == ENTRIES_MAX == 25
    assert log.id_at(0) == log.oldest, "below the oldest head the oldest opening is all there is"


@pytest.mark.parametrize(("epoch", "head"), [(2, 9), (1, 9), (3, 4), (3, 3)])
def test_u54_an_opening_lies_behind_all_others(epoch: int, head: int) -> None:
    with pytest.raises(AssertionError, match="U54"):
        log_of(-1, 4).opened(epoch, LINEAGE, head)


@given(st.lists(st.integers(1, 9), max_size=40))
def test_u54_a_failover_log_is_read_as_it_was_written(steps: list[int]) -> None:
    heads = [-1 + sum(steps[:at]) for at in range(len(steps) + 1)]
    log = log_of(*heads)

    assert FailoverLog.decode(log.encode()) == log
    assert FailoverLog.decode(FailoverLog().encode()) == FailoverLog()


def test_u54_a_damaged_failover_log_is_refused() -> None:
    data = log_of(-1, 4, 9).encode()
    unordered = FailoverLog(log_of(-1, 4, 9).openings[::-1]).encode()
    newer = bytes([data[0] + 1]) + data[1:]

    for wrong in (b"", data[:-1], data + b"\0", unordered, newer, b"\x01\xff" + data[2:]):
        with pytest.raises(RemoteViolation, match="U54"):
            FailoverLog.decode(wrong)
