"""The bytes of checkpoints: format 4, and format 3 as commit d6bdcd2 wrote it (`golden/checkpoint-3*.hex`)."""

from __future__ import annotations

import struct
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.entry import Batch, Entry, Kind, control, seal
from tidemark_core.base.errors import FormatTooNew, FormatTooOld, RemoteViolation
from tidemark_core.base.ids import EntryId
from tidemark_core.limbo.decisions import Decisions, Range
from tidemark_core.replication.checkpoint import (
    CHECKPOINT_FORMAT,
    CHECKPOINT_FORMAT_BEFORE,
    FOLDS,
    Checkpoint,
    Mark,
    OrderRun,
    Run,
    checkpoint_end,
    recoded,
)
from tidemark_core.replication.log import Log, recovery_start
from tidemark_core.replication.producers import REMEMBERED_MAX, Known, ProducerTable
from tidemark_core.subscriptions.fold import Noted, Position, Subscriptions, position_payload

from tests.core.support import OTHER_PRODUCER, PRODUCER, Author
from tests.core.toy_fold import Tally

GOLDEN = Path(__file__).parent / "golden"
ONE, TWO = b"producer-one-16b", b"producer-two-16b"
MIDDLE, ZED = b"middle-one-16by-", b"zed-the-last-16b"
FORMATS = (CHECKPOINT_FORMAT_BEFORE, CHECKPOINT_FORMAT)
HEAD_BYTES, SECTION_HEAD = 49, struct.Struct(">4sQ")


class Scribe:
    """Writes a log whose bytes depend on the entry format alone, so that golden bytes stay true."""

    def __init__(self) -> None:
        self.log = Log()
        self.log.mark_ms = 1_000
        self.entries: list[Entry] = []
        self.epoch = 3
        self.note(Kind.EPOCH_START, b"opening", 1_000)                             # 0
        self.data(ONE, 0, 2, 1_000, 0x210)                                         # 1-2
        self.data(TWO, 0, 1, 2_500, 0x210)                                         # 3
        self.note(Kind.POSITION, position_payload("billing", 60_000), 2_500, 3)    # 4
        self.note(Kind.CONFIRM, b"", 2_600, 4)                                     # 5
        self.data(ONE, 1, 2, 2_700, 0x102)                                         # 6-7
        self.note(Kind.ROLLBACK, b"", 2_800, 6)                                    # 8
        self.epoch = 5
        self.note(Kind.EPOCH_START, b"opening", 4_000)                             # 9
        self.data(TWO, 1, 1, 4_100, 0x102)                                         # 10
        self.note(Kind.POSITION, position_payload("audit.log", 5_000), 4_200, 2)   # 11
        self.note(Kind.POSITION, position_payload("billing", 0), 4_300, 3)         # 12
        self.data(ONE, 2, 3, 6_000, 0x021)                                         # 13-15, above the floor
        self.note(Kind.NOOP, b"opening", 6_100)                                    # 16
        self.log.settle(12)
        self.log.decide(9)
        self.log.trim(1)

    def data(self, producer: bytes, sequence: int, count: int, logged_ms: int, order: int) -> None:
        payload = b"p" * 100
        self._take(
            seal(
                Batch(producer, sequence, count, 1, 2, crc32c(payload), payload), kind=Kind.DATA, epoch=self.epoch,
                prev=self.log.head, prev_chain=self.log.chain, logged_ms=logged_ms, order=order,
            )
        )

    def note(self, kind: Kind, payload: bytes, logged_ms: int, argument: int = -1) -> None:
        self._take(
            control(
                kind, payload, epoch=self.epoch, prev=self.log.head, prev_chain=self.log.chain, logged_ms=logged_ms,
                argument=argument,
            )
        )

    def _take(self, entry: Entry) -> None:
        self.log.append(entry)
        self.entries.append(entry)


class BusyScribe(Scribe):
    """Writes a log of more producers and names than one, first seen, last seen and sorted in different orders."""

    def __init__(self) -> None:
        self.log = Log()
        self.log.mark_ms = 1_000
        self.entries = []
        self.epoch = 7
        self.note(Kind.EPOCH_START, b"opening", 1_000)
        for sequence in range(REMEMBERED_MAX + 2):
            for producer in (ZED, ONE, MIDDLE):
                self.data(producer, sequence, 1 + sequence % 3, 1_100 + 10 * sequence, 0x210)
        self.data(ZED, REMEMBERED_MAX + 2, 1, 1_500, 0x210)
        self.note(Kind.CONFIRM, b"", 1_550, 30)
        for _ in range(2):
            at = self.log.head.offset + 1
            self.data(MIDDLE, REMEMBERED_MAX + 2, 3, 1_600, 0x102)
            self.note(Kind.ROLLBACK, b"", 1_700, at)
        for name in ("zulu", "alpha", "mike"):
            self.note(Kind.POSITION, position_payload(name, 60_000), 2_000, 3)
        self.confirmed = self.log.head.offset
        for name in ("zulu", "alpha"):
            self.note(Kind.POSITION, position_payload(name, 0), 2_100, 5)
        self.log.settle(self.log.head.offset)
        self.data(ONE, REMEMBERED_MAX + 2, 1, 2_200, 0x210)    # above the floor
        self._decide()

    def _decide(self) -> None:
        self.log.decide(self.confirmed)


def golden(format: int) -> bytes:
    return hexadecimal(f"checkpoint-{format}")


def hexadecimal(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def sections_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """Take the sections of a checkpoint of format 4 apart, as its description says."""
    (count,) = struct.unpack_from(">I", data, HEAD_BYTES - 4)
    at, found = HEAD_BYTES, []
    for _ in range(count):
        tag, size = SECTION_HEAD.unpack_from(data, at)
        at += SECTION_HEAD.size
        found.append((tag, data[at:at + size]))
        at += size
    assert at == len(data)
    return found


def with_sections(data: bytes, sections: list[tuple[bytes, bytes]]) -> bytes:
    head = data[:HEAD_BYTES - 4] + struct.pack(">I", len(sections))
    return head + b"".join(SECTION_HEAD.pack(tag, len(body)) + body for tag, body in sections)


# --- golden bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_golden_bytes_are_read_and_written(format: int) -> None:
    checkpoint = Scribe().log.checkpoint()

    assert golden(format) == checkpoint.encode(format)
    assert golden(format) == Checkpoint.decode(golden(format)).encode(format)


def test_a_busy_log_has_the_bytes_of_format_3_that_the_release_before_wrote() -> None:
    """They stay equal when a fold's section changes: that release reads no other (`base.folds`)."""
    checkpoint, before = BusyScribe().log.checkpoint(), hexadecimal("checkpoint-3-busy")

    assert before == checkpoint.encode(CHECKPOINT_FORMAT_BEFORE)
    assert before == recoded(checkpoint.encode(), CHECKPOINT_FORMAT_BEFORE)
    found = Checkpoint.decode(before)
    assert before == found.encode(CHECKPOINT_FORMAT_BEFORE)
    assert checkpoint[:-1] == found[:-1]
    assert checkpoint.fold(ProducerTable).snapshot() == found.fold(ProducerTable).snapshot()
    places = [found.fold(ProducerTable).places(each) for each in (ONE, MIDDLE, ZED)]
    assert [[2, 3, 4, 5, 6], [7], [3, 4, 5, 6, 7]] == [[place.sequence for place in each] for each in places]
    subscriptions, expected = found.fold(Subscriptions), checkpoint.fold(Subscriptions)
    assert {"alpha", "mike", "zulu"} == subscriptions.held.keys()
    assert (expected.held, expected.undecided) == (subscriptions.held, subscriptions.undecided)
    decisions, decided = found.fold(Decisions), checkpoint.fold(Decisions)
    assert (decided.confirmed, decided.openings, decided.ranges) == (
        decisions.confirmed, decisions.openings, decisions.ranges)
    assert 2 == len(decisions.ranges) == len(subscriptions.undecided)


@pytest.mark.parametrize("format", FORMATS)
def test_golden_bytes_say_what_they_said(format: int) -> None:
    data = golden(format)
    found = Checkpoint.decode(data)

    assert (EntryId(5, 12), 4_300, 1) == (found.at, found.logged_ms, found.first)
    assert (found.at, 13) == (checkpoint_end(data), recovery_start(data))
    assert (Run(3, 0, 8), Run(5, 9, 12)) == found.runs
    assert [0, 3, 9] == [mark.base for mark in found.marks]
    assert (OrderRun(1, 0x210), OrderRun(6, 0x102)) == found.orders
    assert (9,) == found.solid
    decisions, subscriptions = found.fold(Decisions), found.fold(Subscriptions)
    assert (4, [9], [Range(6, 8)]) == (decisions.confirmed, decisions.openings, decisions.ranges)
    assert {"billing": Position(3, 2_500, 60_000)} == subscriptions.held
    assert (
        Noted(11, "audit.log", Position(2, 4_200, 5_000)), Noted(12, "billing", Position(3, 4_300, 0)),
    ) == subscriptions.undecided
    producers = found.fold(ProducerTable)
    assert [[1, 6], [3, 10]] == [[place.base for place in producers.places(each)] for each in (ONE, TWO)]


def test_a_store_of_format_3_is_restored_and_writes_format_4() -> None:
    scribe = Scribe()
    log = scribe.log

    restored = Log.restore(golden(3), [], 12)
    restored.mark_ms = log.mark_ms
    for entry in scribe.entries:
        if entry.base > 12:
            restored.append(entry)

    assert (log.head, log.chain, log.runs, log.marks, log.orders, log.solid, log.bytes_held) == (
        restored.head, restored.chain, restored.runs, restored.marks, restored.orders, restored.solid,
        restored.bytes_held,
    )
    assert log.producers.snapshot() == restored.producers.snapshot()
    for each in (log, restored):
        each.settle(16)
        each.decide(16)
    written = restored.checkpoint().encode()
    assert log.checkpoint().encode() == written
    assert CHECKPOINT_FORMAT == written[0] == 4


def test_a_checkpoint_is_recoded_for_a_member_of_the_release_before() -> None:
    assert golden(3) == recoded(golden(4), CHECKPOINT_FORMAT_BEFORE)
    assert golden(4) == recoded(golden(3), CHECKPOINT_FORMAT)
    assert golden(3) == recoded(golden(3), CHECKPOINT_FORMAT_BEFORE)
    assert b"" == recoded(b"", CHECKPOINT_FORMAT_BEFORE), "a log that was not trimmed has none"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("data"), st.sampled_from((PRODUCER, OTHER_PRODUCER)), st.integers(1, 5)),
            st.tuples(st.just("epoch"), st.sampled_from((Kind.EPOCH_START, Kind.NOOP)), st.integers(1, 2)),
            st.tuples(st.just("position"), st.sampled_from(("a", "b.c", "d" * 128)), st.sampled_from((0, 90_000))),
            st.tuples(st.just("rollback"), st.none(), st.none()),
        ),
        max_size=40,
    ),
    st.data(),
)
def test_every_checkpoint_survives_its_bytes_in_both_formats(
    story: list[tuple[str, object, int]], data: st.DataObject
) -> None:
    author = Author()
    author.opening()
    for what, one, other in story:
        fold = author.log.decisions
        if what == "data":
            author.data(other, producer=one, payload=bytes(200_000), order=other, logged_ms=author.log.logged_ms + 50)
        elif what == "epoch":
            author.opening(one, epoch=author.epoch + other)
        elif what == "position":
            author.position(one, author.log.head.offset, other)
        elif max(fold.openings[-1], fold.last_record) < author.entries[-1].base:
            author.rollback(author.entries[-1].base)
    cuts = [entry.last for entry in author.entries if author.log.decisions.covering(entry.last) is None]
    confirmed = data.draw(st.sampled_from(cuts))
    author.log.settle(data.draw(st.sampled_from([entry.last for entry in author.entries if entry.last >= confirmed])))
    author.log.decide(confirmed)
    author.log.trim(author.log.trim_point(data.draw(st.integers(0, confirmed + 1))))
    checkpoint = author.log.checkpoint()

    for format in FORMATS:
        encoded = checkpoint.encode(format)
        decoded = Checkpoint.decode(encoded)
        assert checkpoint[:-1] == decoded[:-1]
        assert [fold.encode() for fold in checkpoint.folds] == [fold.encode() for fold in decoded.folds]
        for other_format in FORMATS:
            assert checkpoint.encode(other_format) == recoded(encoded, other_format)


# --- sections ---------------------------------------------------------------------------------------------


def test_a_section_carries_its_tag_and_its_length() -> None:
    sections = sections_of(golden(4))

    assert [b"runs", b"mark", b"ordr", b"sold", b"deci", b"subs", b"prod"] == [tag for tag, _ in sections]
    assert golden(4) == with_sections(golden(4), sections)
    marks = [Mark(*fields) for fields in struct.iter_unpack(">qQq", dict(sections)[b"mark"])]
    assert marks == list(Checkpoint.decode(golden(4)).marks)


def test_sections_are_found_by_their_tags_in_any_order() -> None:
    turned = with_sections(golden(4), sections_of(golden(4))[::-1])

    assert golden(4) == Checkpoint.decode(turned).encode()


@pytest.mark.parametrize("tag", [b"runs", b"mark", b"ordr", b"sold", b"deci", b"subs", b"prod"])
def test_a_missing_section_is_refused(tag: bytes) -> None:
    data = with_sections(golden(4), [section for section in sections_of(golden(4)) if section[0] != tag])

    with pytest.raises(RemoteViolation, match=f"checkpoint has no section {tag!r}"):
        Checkpoint.decode(data)
    with pytest.raises(RemoteViolation, match=f"checkpoint has no section {tag!r}"):
        recoded(data, 3)


def test_a_section_that_is_there_twice_is_refused() -> None:
    sections = sections_of(golden(4))

    with pytest.raises(RemoteViolation, match="section b'runs' twice"):
        Checkpoint.decode(with_sections(golden(4), [*sections, sections[0]]))


def test_an_unknown_section_is_refused() -> None:
    data = with_sections(golden(4), [*sections_of(golden(4)), (b"news", b"x")])

    with pytest.raises(FormatTooNew, match=r"sections \[b'news'\], which this build does not know"):
        Checkpoint.decode(data)
    assert EntryId(5, 12) == checkpoint_end(data), "its head can be read all the same"


@pytest.mark.parametrize("tag", [b"runs", b"mark", b"ordr", b"sold", b"deci", b"subs", b"prod"])
def test_a_section_of_another_length_is_refused(tag: bytes) -> None:
    sections = sections_of(golden(4))
    longer = with_sections(golden(4), [(each, body + b"x" * (each == tag)) for each, body in sections])
    shorter = with_sections(golden(4), [(each, body[:-1] if each == tag else body) for each, body in sections])

    for data in (longer, shorter):
        with pytest.raises(RemoteViolation):
            Checkpoint.decode(data)


@pytest.mark.parametrize("format", FORMATS)
def test_damaged_bytes_are_refused(format: int) -> None:
    data = golden(format)

    with pytest.raises(RemoteViolation, match="1 bytes behind its end"):
        Checkpoint.decode(data + b"x")
    for cut in range(len(data)):
        with pytest.raises(RemoteViolation):
            Checkpoint.decode(data[:cut])
        with pytest.raises(RemoteViolation):
            recoded(data[:cut] or b"\0", 3)
    with pytest.raises(RemoteViolation, match="checkpoint is cut short"):
        Checkpoint.decode(data[:-1])
    for cut in range(HEAD_BYTES):
        with pytest.raises(RemoteViolation):
            checkpoint_end(data[:cut])


def test_an_unknown_format_is_refused() -> None:
    for read in (Checkpoint.decode, checkpoint_end):
        with pytest.raises(RemoteViolation, match="checkpoint has format 5, this build reads 3 and 4"):
            read(b"\x05" + golden(4)[1:])
    with pytest.raises(ValueError, match="no checkpoint has format 2"):
        Scribe().log.checkpoint().encode(2)


# --- folds that are new -----------------------------------------------------------------------------------


class Strict(Tally):
    """A toy fold over entries that older releases wrote too: it cannot begin empty."""

    tag = b"toy3"
    begins_empty = False


def with_toy(toy: type[Tally], decided: bool) -> Log:
    log = Log(table=(*FOLDS, toy))
    for entry in Scribe().entries:
        if decided or (entry.kind is Kind.EPOCH_START and entry.base == 0):
            log.append(entry)
    log.settle(log.head.offset)
    return log


@pytest.mark.parametrize("format", FORMATS)
def test_a_checkpoint_from_before_a_fold_that_begins_empty_is_read(format: int) -> None:
    found = Checkpoint.decode(golden(format), (*FOLDS, Tally)).fold(Tally)

    assert ({}, 0) == (found.counted, len(found.waiting))


@pytest.mark.parametrize("format", FORMATS)
def test_a_checkpoint_from_before_a_fold_that_cannot_begin_empty_is_refused(format: int) -> None:
    with pytest.raises(RemoteViolation, match="checkpoint has no section b'toy3'"):
        Checkpoint.decode(golden(format), (*FOLDS, Strict))


def test_a_fold_that_begins_empty_writes_no_section_while_it_is_empty() -> None:
    """So a release without it reads the checkpoints of one that has it, until the first entry of the new kind."""
    empty, filled = (with_toy(Tally, decided).checkpoint() for decided in (False, True))

    assert b"toy1" not in dict(sections_of(empty.encode()))
    assert Checkpoint.decode(empty.encode()).at == Checkpoint.decode(empty.encode(3)).at == empty.at
    assert empty.encode(3) == recoded(empty.encode(), 3)
    assert b"toy1" in dict(sections_of(filled.encode()))
    with pytest.raises(RemoteViolation, match="which this build does not know"):
        Checkpoint.decode(filled.encode())


@pytest.mark.parametrize(("toy", "decided"), [(Tally, True), (Strict, True), (Strict, False)])
def test_a_fold_that_format_3_has_no_place_for_is_not_left_out_in_silence(toy: type[Tally], decided: bool) -> None:
    checkpoint = with_toy(toy, decided).checkpoint()

    with pytest.raises(FormatTooOld, match=f"format 3 has no place for sections .*{toy.tag!r}"):
        checkpoint.encode(3)
    with pytest.raises(FormatTooOld, match=f"format 3 has no place for sections .*{toy.tag!r}"):
        recoded(checkpoint.encode(), 3)


def some_checkpoint() -> bytes:
    author = Author()
    author.opening()
    author.data(2)
    author.position("a", 2)
    author.rollback(author.data(producer=OTHER_PRODUCER).base)
    author.opening(epoch=2)
    author.log.settle(author.log.head.offset)
    return author.log.checkpoint().encode()


def test_a_producer_without_a_place_is_damage() -> None:
    empty = Checkpoint.decode(some_checkpoint())
    table = empty.fold(ProducerTable)
    table._known = OrderedDict({PRODUCER: Known(0, ())})
    for format in FORMATS:
        with pytest.raises(RemoteViolation, match="no place"):
            Checkpoint.decode(empty.encode(format))
    with pytest.raises(struct.error, match="no place"):
        Known.decode(Known(0, ()).encode())


@given(
    st.sampled_from(FORMATS),
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from((0, 255)) | st.integers(0, 255)), max_size=4),
    st.floats(0, 1),
    st.booleans(),
)
@settings(max_examples=1_000)
def test_a_changed_checkpoint_is_read_or_refused_by_name(
    format: int, changes: list[tuple[float, int]], length: float, cut: bool
) -> None:
    data = bytearray(recoded(some_checkpoint(), format))
    for where, value in changes:
        data[int(where * len(data))] = value
    if cut:
        del data[int(length * len(data)):]
    for read in (Checkpoint.decode, checkpoint_end):
        with suppress(FormatTooNew, RemoteViolation):
            read(bytes(data))
