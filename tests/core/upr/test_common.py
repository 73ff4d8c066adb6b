"""How far a consumer and a member have the same history: the comparison of failover logs (rule U57).

The vectors are the cases of Couchbase's comparison (`FailoverTable::needsRollback`): a table of three histories that
begin at 0, 10 and 20, a member at 30, and the consumer's history, seqno and snapshot.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.upr.common import Had, common
from tidemark_core.upr.history import FailoverLog, history_id

LINEAGE = b"L" * 16
LOG = FailoverLog().opened(1, LINEAGE, 0).opened(2, LINEAGE, 10).opened(3, LINEAGE, 20)
OLD, MIDDLE, NEW = (history_id(LINEAGE, epoch) for epoch in (1, 2, 3))
STRANGE = history_id(b"M" * 16, 3)
HIGH = 30

GOLDEN = [
    # seqno, snapshot, history, purge seqno here, purge seqno known -> common
    ("a consumer with nothing undoes nothing", 0, (0, 0), None, 0, None, 0),
    ("at 0 the history does not matter", 0, (0, 0), STRANGE, 0, None, 0),
    ("at 0 the purge does not matter", 0, (0, 0), NEW, 25, None, 0),
    ("behind the newest opening, whole snapshot", 25, (25, 25), NEW, 0, None, 25),
    ("in a snapshot that the member has", 25, (22, 28), NEW, 0, None, 25),
    ("an older history, below where it ended", 8, (8, 8), OLD, 0, None, 8),
    ("an older history, exactly where it ended", 10, (10, 10), OLD, 0, None, 10),
    ("an older history, above where it ended: to its end", 15, (15, 15), OLD, 0, None, 10),
    ("an older history, in a snapshot across its end: to the start", 9, (7, 12), OLD, 0, None, 7),
    ("nothing of a snapshot across the end was received", 9, (9, 12), OLD, 0, None, 9),
    ("all of a snapshot across the end was received: to the end", 12, (7, 12), OLD, 0, None, 10),
    ("a snapshot that starts above the end: to the end", 14, (12, 16), OLD, 0, None, 10),
    ("the middle history ends where the newest begins", 24, (22, 26), MIDDLE, 0, None, 20),
    ("above the member's end: to its end", 35, (35, 35), NEW, 0, None, 30),
    ("an unknown history: from the beginning", 25, (25, 25), STRANGE, 0, None, 0),
    ("below the purge seqno: from the beginning", 15, (15, 15), NEW, 16, None, 0),
    ("below a purge seqno that the consumer knows", 25, (25, 25), NEW, 26, 26, 25),
]


@pytest.mark.parametrize(("seqno", "snapshot", "had", "purged", "known", "expected"), [row[1:] for row in GOLDEN])
def test_u57_common_answers_the_golden_vectors(
    seqno: int, snapshot: tuple[int, int], had: bytes | None, purged: int, known: int | None, expected: int
) -> None:
    assert common(Had(had, seqno, *snapshot, known), LOG, HIGH, purged) == expected


def test_u57_there_are_17_golden_vectors() -> None:
    assert len(GOLDEN) == len({row[0] for row in GOLDEN}) == 17


def test_u57_a_key_that_the_snapshot_left_out_is_not_skipped() -> None:
    """1: A (left out for 4), 2: B, 3: C, 4: delete A.  The member restarts and loses 4; the history ends at 3."""
    log = FailoverLog().opened(1, LINEAGE, 0).opened(2, LINEAGE, 3)

    assert common(Had(history_id(LINEAGE, 1), 3, 1, 4), log, 3, 0) == 1
    assert common(Had(history_id(LINEAGE, 1), 3, 3, 3), log, 3, 0) == 3, "without the snapshot A would never be seen"


def test_u57_a_seqno_outside_its_snapshot_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"seqno 5 lies outside its snapshot \[6, 9\]"):
        common(Had(NEW, 5, 6, 9), LOG, HIGH, 0)


@given(st.integers(0, 40), st.integers(0, 5), st.integers(0, 5), st.sampled_from([OLD, MIDDLE, NEW, STRANGE]))
def test_u57_common_never_lies_above_the_consumer_the_member_or_the_end_of_the_history(
    start: int, received: int, more: int, had: bytes
) -> None:
    seqno, end = start + received, start + received + more
    upper = {OLD: 10, MIDDLE: 20, NEW: HIGH, STRANGE: 0}[had]
    found = common(Had(had, seqno, start, end), LOG, HIGH, 0)

    assert 0 <= found <= seqno
    assert found <= upper, "U57: nothing above the branch is common"
