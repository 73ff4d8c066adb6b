"""A retry appends the rows behind those that are there, if those are the same (P15)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_tidemark.sink.resuming import BatchPassed, NondeterministicRetry, Resuming
from pyspark_tidemark.sink.tally import Noted, Tally, UnreadableNote
from tidemark.payload import SCHEMA

Row = tuple[bytes | None, bytes, int, list[tuple[str, bytes]] | None]

ROWS = st.lists(st.tuples(
    st.none() | st.binary(max_size=4), st.binary(max_size=6), st.integers(-5, 5),
    st.none() | st.lists(st.tuples(st.text(max_size=2), st.binary(max_size=2)), max_size=2)), max_size=12)
CUTS = st.lists(st.integers(0, 12), max_size=5)
FOUR: list[Row] = [(None, b"a", 1, None), (b"k", b"bb", 2, []), (b"", b"", 3, [("h", b"1")]), (b"k", b"d", 4, None)]


def columns(rows: Sequence[Row]) -> pa.RecordBatch:
    headers = [None if each[3] is None else [{"key": k, "value": v} for k, v in each[3]] for each in rows]
    arrays = [[each[0] for each in rows], [each[1] for each in rows], [each[2] for each in rows], headers]
    return pa.RecordBatch.from_arrays(
        [pa.array(each, field.type) for each, field in zip(arrays, SCHEMA, strict=True)], schema=SCHEMA)


def divided(rows: Sequence[Row], cuts: Sequence[int]) -> list[pa.RecordBatch]:
    """Return the rows as slices of one record batch, some of them empty."""
    whole, at = columns(rows), [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [whole.slice(first, until - first) for first, until in pairwise(at)]


def appended(resuming: Resuming, rows: Sequence[Row], cuts: Sequence[int] = ()) -> tuple[list[bytes], list[Noted]]:
    """Write rows; return the values that are appended, and the notes that go along."""
    values, notes = [], []
    for part in divided(rows, cuts):
        left = resuming.left(part)
        if left.num_rows:
            notes.append(Noted.of(resuming.note(left)))
            values += left.column("value").to_pylist()
    resuming.end()
    return values, notes


@given(ROWS, CUTS, CUTS)
def test_p15_a_checksum_does_not_depend_on_how_rows_are_divided(
    rows: list[Row], cuts: list[int], others: list[int]
) -> None:
    tallies = [Tally(), Tally()]
    for tally, each in zip(tallies, (cuts, others), strict=True):
        for part in divided(rows, each):
            tally.add(part)
    assert tallies[0] == tallies[1]
    assert Noted.of(tallies[0].note(7)) == Noted(7, tallies[1])


@given(ROWS, ROWS)
def test_p15_other_rows_have_another_checksum(rows: list[Row], others: list[Row]) -> None:
    tallies = [Tally(), Tally()]
    for tally, each in zip(tallies, (rows, others), strict=True):
        tally.add(columns(each))
    assert (tallies[0] == tallies[1]) == (rows == others)


@pytest.mark.parametrize(("rows", "others"), [
    ([(None, b"a", 1, None), (None, b"b", 1, None)], [(None, b"ab", 1, None), (None, b"", 1, None)]),
    ([(None, b"", 1, None)], [(b"", b"", 1, None)]), ([(b"a", b"", 1, None)], [(b"", b"a", 1, None)]),
    ([(None, b"", 1, None)], [(None, b"", 1, [])]),
], ids=["where a value ends", "no key", "key or value", "no headers"])
def test_p15_rows_of_the_same_bytes_are_told_apart(rows: list[Row], others: list[Row]) -> None:
    tallies = [Tally(), Tally()]
    for tally, each in zip(tallies, (rows, others), strict=True):
        tally.add(columns(each))
    assert tallies[0] != tallies[1]


@given(ROWS, CUTS, CUTS, st.integers(0, 5))
def test_p15_a_retry_appends_what_is_left_behind_any_attempt(
    rows: list[Row], cuts: list[int], others: list[int], ended_at: int
) -> None:
    values, notes = appended(Resuming("part 0", 3, None), rows, cuts)
    assert values == [each[1] for each in rows]
    notes = notes[:ended_at]
    again, _ = appended(Resuming("part 0", 3, notes[-1] if notes else None), rows, others)
    assert again == values[notes[-1].tally.rows if notes else 0:]


@pytest.mark.parametrize("rows", [
    [(b"other", *FOUR[0][1:]), *FOUR[1:]], [FOUR[1], FOUR[0], *FOUR[2:]], FOUR[:2], [],
    [FOUR[0], FOUR[1], (*FOUR[2][:2], 99, FOUR[2][3]), FOUR[3]], [FOUR[0], FOUR[1], (*FOUR[2][:3], None), FOUR[3]],
], ids=["key", "order", "fewer", "none", "timestamp", "headers"])
def test_p15_a_retry_with_other_rows_appends_nothing_and_says_what_to_do(rows: list[Row]) -> None:
    _, notes = appended(Resuming("part 0", 3, None), FOUR[:3])
    retry = Resuming("part 0 of sink 's', shard 1,", 3, notes[-1])
    with pytest.raises(NondeterministicRetry, match=(
        r"NONDETERMINISTIC_RETRY: part 0 of sink 's', shard 1, has 3 rows of batch 3 from .* leave rand\(\)")):
        assert appended(retry, rows) == ([], [])


def test_p15_rows_behind_those_that_are_there_may_be_others() -> None:
    _, notes = appended(Resuming("part 0", 3, None), FOUR[:2])
    assert appended(Resuming("part 0", 3, notes[-1]), [*FOUR[:2], FOUR[0]])[0] == [b"a"]


def test_p15_the_next_batch_begins_with_its_first_row_and_an_older_one_is_refused() -> None:
    _, notes = appended(Resuming("part 0", 3, None), FOUR)
    assert appended(Resuming("part 0", 4, notes[-1]), FOUR[:1])[0] == [b"a"]
    with pytest.raises(BatchPassed, match="part 0 has batch 3 already, and this is batch 2"):
        Resuming("part 0", 2, notes[-1])


@pytest.mark.parametrize(("note", "said"), [(b"", "has 0 bytes"), (b"\x02" + bytes(40), "has version 2")])
def test_a_note_of_another_writer_is_refused(note: bytes, said: str) -> None:
    with pytest.raises(UnreadableNote, match=said):
        Noted.of(note)
