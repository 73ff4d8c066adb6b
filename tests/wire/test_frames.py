"""Frames: what goes in comes out, and whatever is malformed is a RemoteViolation."""

from __future__ import annotations

import dataclasses
import os
import struct
import subprocess
import sys
import types
import typing
from dataclasses import replace
from enum import Enum
from pathlib import Path

import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.effects import SnapshotDescriptor
from tidemark_core.base.entry import (
    HEADER_BYTES,
    Batch,
    Durability,
    Entry,
    Kind,
    control,
    decode_header,
    seal,
)
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import LOG_PLANE, NOTHING, EntryId, Member, ShardKind, of_shard
from tidemark_core.base.limits import Limits
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.documents.payload import RECORDS_MAX, Outcome, Verdict
from tidemark_core.documents.requests import Written
from tidemark_core.replication import messages
from tidemark_core.replication.checkpoint import FOLDS, Checkpoint
from tidemark_wire import convert, frames
from tidemark_wire.frames import AppendAnswer, AppendCall, ReadFrame
from tidemark_wire.v1 import replication_pb2
from tidemark_wire.wire_version import WIRE_VERSION, WIRE_VERSION_OLDEST

unsigned = st.integers(0, (1 << 64) - 1)
signed = st.integers(-(1 << 63), (1 << 63) - 1)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
members = st.builds(Member, words, words)
ids = st.builds(EntryId, unsigned, signed)
durabilities = st.sampled_from(Durability)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    payload = draw(st.binary(max_size=300))
    return Batch(
        draw(st.binary(min_size=16, max_size=16)), draw(st.integers(0, 1 << 40)), draw(st.integers(1, 1000)),
        draw(st.integers(0, 1 << 50)), draw(st.integers(0, 1 << 50)), crc32c(payload), payload,
        draw(durabilities),
    )


@st.composite
def chains(draw: st.DrawFn) -> tuple[Entry, ...]:
    prev, chain, entries = EntryId(3, draw(st.integers(-1, 1 << 40))), 0, []
    for batch in draw(st.lists(batches(), max_size=4)):
        entry = seal(batch, kind=Kind.DATA, epoch=3, prev=prev, prev_chain=chain, logged_ms=17)
        prev, chain = entry.id, entry.chain
        entries.append(entry)
    return tuple(entries)


def some_bare(entries: tuple[Entry, ...]) -> st.SearchStrategy[tuple[Entry, ...]]:
    """The entries, each with its payload or without."""
    whole = st.lists(st.booleans(), min_size=len(entries), max_size=len(entries))
    return whole.map(lambda kept: tuple(
        entry if keep else entry.bare() for entry, keep in zip(entries, kept, strict=True)))


entry_or_none = st.one_of(st.none(), chains().filter(len).map(lambda chain: chain[0]))
descriptors = st.builds(
    SnapshotDescriptor, unsigned, ids, signed, signed, unsigned, st.binary(max_size=50), signed, unsigned, signed,
    unsigned, st.lists(members, max_size=3).map(tuple),
)
unheard = st.builds(messages.Unheard, unsigned, unsigned, st.lists(members, max_size=3).map(tuple), unsigned)
diverged = st.builds(messages.Diverged, unsigned, unsigned, members, signed)
cuts = st.builds(messages.FoldedCut, signed, unsigned, st.binary(min_size=16, max_size=16))
refusals = st.builds(Refused, st.sampled_from(Reason), st.text(max_size=50), signed, signed, signed)


def field_strategy(annotation: object, name: str, owner: type) -> st.SearchStrategy:
    """Values for one field of a message, from its type."""
    if owner is messages.Append and name == "entries":
        return chains().flatmap(some_bare)
    if annotation is int:
        # Offsets and trims may be negative; epochs, elections and byte counts may not.
        return signed if name in OFFSETS else unsigned
    if annotation is str:
        return st.text(max_size=20)
    table = {
        Member: members, EntryId: ids, SnapshotDescriptor: descriptors, Refused: refusals,
        Entry: chains().filter(len).map(lambda chain: chain[0]),
        messages.Unheard: unheard, messages.Diverged: diverged, messages.FoldedCut: cuts, bytes: st.binary(max_size=16),
    }
    if annotation in table:
        return table[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return st.sampled_from(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(
            *(st.none() if a is type(None) else field_strategy(a, name, owner) for a in arguments)
        )
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(field_strategy(arguments[0], name, owner), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*(field_strategy(a, name, owner) for a in arguments))
    raise AssertionError(f"{owner.__name__}.{name}: {annotation}")


OFFSETS = {
    "clock_ms", "clocks", "upto", "matches", "released", "through", "commit", "confirmed", "trim", "base", "first",
}
CLIENT_WORDS = {
    messages.Appended, messages.Outcome, messages.ReadGrant, messages.Latest, messages.PositionCommitted,
    messages.SubscriptionDeleted, messages.Claimed, messages.SinkJoined, messages.SinkMarked, messages.SinkDeleted,
}
NEW = (messages.ReadRound, messages.ReadRoundAck, messages.Reach, messages.DigestsAsked, messages.Digests)
"""The release before knows none of these (O43, O46, U73b)."""
NEW_REASONS = {
    Reason.GROUP_REPLACED, Reason.UNKNOWN_KEYSPACE, Reason.PRODUCER_UNKNOWN, Reason.PRODUCER_FENCED,
    Reason.FENCE_TOO_LOW, Reason.NEEDS_UPGRADE, Reason.RECORD_CAME_FIRST,
    Reason.BATCH_PASSED, Reason.PART_LEFT_OUT, Reason.TOO_MANY_SINKS,
    Reason.TOO_MANY_PINS, Reason.WRONG_KIND, Reason.NOT_PINNED, Reason.LAST_COPY,
}
PARTS = {messages.Unheard, messages.Diverged, messages.FoldedCut}
AT = of_shard(1)
CHECKPOINT = Checkpoint(EntryId(1, 4), 7, 1000, 300, 5, (), (), (), (), tuple(fold() for fold in FOLDS))
OF_SHELLS = {
    convert.Draining: st.builds(convert.Draining, st.booleans()),
    convert.DiskReport: st.builds(convert.DiskReport, st.integers(0, 2), st.integers(0, (1 << 64) - 1)),
}
LINK_MESSAGES = [
    value for value in vars(messages).values()
    if dataclasses.is_dataclass(value) and value.__module__ == messages.__name__ and value not in CLIENT_WORDS | PARTS
]


def strategy(message: type) -> st.SearchStrategy:
    hints = typing.get_type_hints(message)
    return st.builds(message, **{name: field_strategy(kind, name, message) for name, kind in hints.items()})


def test_every_message_of_the_core_has_a_codec():
    packed = {messages.Append, messages.AppendAck}
    assert {*LINK_MESSAGES} == ({codec.message for codec in convert.CODECS} | packed) - {*OF_SHELLS}


@pytest.mark.parametrize(("cuts", "what"), [
    ([{"digest": b"short"}], "5 bytes"), ([{"digest": bytes(16)}] * 65, "65 digests"),
])
def test_u73b_a_hostile_answer_about_digests_is_refused(cuts: list[dict[str, bytes]], what: str):
    body = replication_pb2.Digests(epoch=1, cuts=[replication_pb2.FoldedCut(**cut) for cut in cuts])
    codec = convert.PLANE_CODECS[LOG_PLANE].by_message[messages.Digests]

    with pytest.raises(RemoteViolation, match=what):
        codec.decode(body.SerializeToString())


@pytest.mark.parametrize("message", [*LINK_MESSAGES, *OF_SHELLS], ids=lambda cls: cls.__name__)
def test_message_round_trip(message: type):
    values = OF_SHELLS[message] if message in OF_SHELLS else strategy(message)

    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, (1 << 64) - 1), st.one_of(st.none(), members), values)
    def check(shard: int, to: Member | None, value: object) -> None:
        frame = frames.encode_message(of_shard(shard), to, value)
        assert [((LOG_PLANE, shard), to, value)] == list(frames.decode_messages(frame))

    check()


ADDED = {"nonce": 0, "kind": ShardKind.LOG}
"""Fields that the release before does not know, and what they say where it left them out."""

WHEEL = next((Path(__file__).parents[1] / "e2e" / "data").glob("*.whl"))
READER = """
import sys
from tidemark_wire import channel, frames
assert channel.WIRE_VERSION == 4, channel.__file__
while size := int.from_bytes(sys.stdin.buffer.read(4), "big"):
    again = [frames.encode_message(*each) for each in frames.decode_messages(sys.stdin.buffer.read(size))]
    sys.stdout.buffer.write(b"".join(again))
"""


def test_the_release_before_reads_every_message_on_a_link_of_its_version():
    """It decodes each one and encodes the same bytes again."""
    sent: list[bytes] = []

    @settings(max_examples=300, deadline=None, database=None)
    @given(unsigned, st.one_of(st.none(), members), st.one_of(*(strategy(m) for m in LINK_MESSAGES if m not in NEW)))
    def collect(shard: int, to: Member | None, value: typing.Any) -> None:
        if getattr(value, "snapshot", None) is not None:
            value = replace(value, snapshot=replace(value.snapshot, checkpoint=CHECKPOINT.encode(), kind=ShardKind.LOG))
        if isinstance(value, messages.Rejected) and value.refusal.reason in NEW_REASONS:
            value = replace(value, refusal=Refused(Reason.SEQUENCE_GAP))   # new, and never an answer to an operator
        value = replace(value, **{name: absent for name, absent in ADDED.items() if hasattr(value, name)})
        sent.append(frames.encode_message(of_shard(shard), to, value, 4))

    collect()
    given_frames = b"".join(len(frame).to_bytes(4, "big") + frame for frame in sent)
    read = subprocess.run(
        [sys.executable, "-c", READER], input=given_frames, capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(WHEEL)})
    assert 0 == read.returncode, read.stderr.decode()
    assert b"".join(sent) == read.stdout


@pytest.mark.parametrize("message", [*NEW, convert.DiskReport], ids=lambda cls: cls.__name__)
def test_a_message_that_is_new_in_this_release_is_not_sent_to_the_release_before(message: type):
    with pytest.raises(frames.NotOnThisWire, match=message.__name__):
        frames.encode_message(AT, None, message(*[1] * min(2, len(dataclasses.fields(message)))), 4)


@given(st.lists(st.tuples(unsigned, members, strategy(messages.Append) | strategy(messages.Truncate))))
@settings(max_examples=30, deadline=None)
def test_messages_of_a_turn_share_a_frame(sent: list):
    addressed = [(of_shard(shard), to, message) for shard, to, message in sent]
    parts = [part for message in addressed for part in frames.message_parts(*message)]
    assert addressed == list(frames.decode_messages(b"".join(parts)))


group_ids = st.integers(0, (1 << 32) - 1)
calls = st.builds(AppendCall, unsigned, words, group_ids, batches(), signed, group_ids)


@given(st.lists(calls, max_size=5))
@settings(max_examples=50, deadline=None)
def test_appends_round_trip(calls: list[AppendCall]):
    assert calls == list(frames.decode_appends(frames.encode_appends(calls)))


appended = st.builds(messages.Appended, unsigned, signed, st.integers(1, 1 << 20), durabilities)
outcomes = st.builds(Outcome, st.sampled_from(Verdict), st.integers(0, 2**63 - 1))
written = st.lists(outcomes, max_size=20).flatmap(lambda found: st.builds(
    Written, unsigned, signed, st.just(len(found)), st.sampled_from(Durability), st.just(tuple(found))))
no_batch = st.just((-1, 0, 0, 0))
some_batch = st.tuples(st.integers(0, 2**63 - 1), unsigned, st.integers(0, 1 << 40), st.integers(1, 1 << 16))
claimed = st.builds(
    lambda epoch, behind, batch: messages.Claimed(epoch, batch[2] + batch[3] + behind, *batch),
    unsigned, st.integers(1, 1 << 40), st.one_of(no_batch, some_batch))
answers = st.one_of(
    st.builds(AppendAnswer, unsigned, appended),
    st.builds(AppendAnswer, unsigned, written),
    st.builds(AppendAnswer, unsigned, claimed),
    st.builds(AppendAnswer, unsigned, refusals, words, words, unsigned),
)


@given(st.lists(answers, max_size=5))
@settings(max_examples=50, deadline=None)
def test_answers_round_trip(sent: list[AppendAnswer]):
    assert sent == list(frames.decode_answers(frames.encode_answers(sent)))


@given(st.builds(ReadFrame, signed, signed, signed, chains()))
@settings(max_examples=50, deadline=None)
def test_read_round_trip(frame: ReadFrame):
    assert frame == frames.decode_read(frames.encode_read(frame))


def log_of(*kinds: Kind) -> list[Entry]:
    """One entry of one record per kind, at offsets 0, 1, 2 and so on."""
    prev, chain, entries = NOTHING, 0, []
    for kind in kinds:
        batch = Batch(b"p" * 16, 0, 1, 0, 0, crc32c(b"x"), b"x")
        entry = seal(batch, kind=kind, epoch=1, prev=prev, prev_chain=chain, logged_ms=1)
        prev, chain = entry.id, entry.chain
        entries.append(entry)
    return entries


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_read_with_holes_round_trip(kept: list[bool], control_every: int):
    """Every way to cut holes into a log comes back, with the records that made them."""
    kinds = [Kind.ROLLBACK if control_every and at % (control_every + 1) == 0 else Kind.DATA for at in range(len(kept))]
    log = log_of(*kinds)
    holes, at = [], 0
    while at < len(kept):
        end = at
        while end < len(kept) and not kept[end]:
            end += 1
        if end > at:
            holes.append((at, end - 1))
        at = end + 1
    entries = tuple(entry for entry in log if kept[entry.base] or entry.kind is not Kind.DATA)
    frame = ReadFrame(0, len(kept) - 1, len(kept) - 1, entries, tuple(holes))
    assert frame == frames.decode_read(frames.encode_read(frame))


@pytest.mark.parametrize(
    "holes",
    [
        ((4, 6),), ((11, 12),), ((9, 11),),     # in front of the coverage, behind it, across its end
        ((7, 6),), ((7, 8), (8, 9)), ((8, 9), (6, 6)), ((6, 7), (6, 7)),
    ],
)
def test_hole_out_of_order_or_outside_is_a_violation(holes: tuple):
    frame = frames.encode_read(ReadFrame(5, 10, 10, (), holes))
    with pytest.raises(RemoteViolation, match=r"hole \d+\.\.\d+ is not in order, or not inside"):
        frames.decode_read(frame)


@pytest.mark.parametrize(("base", "count"), [(2, 1), (3, 2), (1, 2), (1, 9)])
def test_rolled_back_entry_in_a_read_is_a_violation(base: int, count: int):
    """Whether it lies in the hole or only reaches into it: nobody acts upon it."""
    batch = Batch(b"p" * 16, 0, count, 0, 0, crc32c(b"x"), b"x")
    entry = seal(batch, kind=Kind.DATA, epoch=1, prev=EntryId(1, base - 1), prev_chain=0, logged_ms=1)
    with pytest.raises(RemoteViolation, match=f"entry at {base} lies in the hole 2..4"):
        frames.decode_read(frames.encode_read(ReadFrame(0, 20, 20, (entry,), ((2, 4),))))


def test_holes_are_bounded():
    many = tuple((at * 2, at * 2) for at in range(frames.HOLES_MAX + 1))
    frame = ReadFrame(0, 1 << 20, 1 << 20, (), many[:-1])
    assert frame == frames.decode_read(frames.encode_read(frame))
    with pytest.raises(ValueError, match="65537 holes"):
        frames.encode_read(ReadFrame(0, 1 << 20, 1 << 20, (), many))
    announced = bytearray(frames.encode_read(ReadFrame(0, -1, 0, ())))
    announced[24:28] = (frames.HOLES_MAX + 1).to_bytes(4)
    with pytest.raises(RemoteViolation, match="announces 65537 holes"):
        frames.decode_read(bytes(announced))


def test_long_refusal_text_is_cut_not_refused():
    answer = AppendAnswer(1, Refused(Reason.INVALID_BATCH, "é" * 5000))
    (back,) = frames.decode_answers(frames.encode_answers([answer]))
    assert back.value.message.startswith("é" * 999) and len(back.value.message) <= 1001


SAMPLE_ENTRY = control(Kind.EPOCH_START, b"hello", epoch=1, prev=NOTHING, prev_chain=0, logged_ms=5)
WRITTEN = Written(
    3, 10, 3, Durability.QUORUM, (Outcome(Verdict.APPLIED, 4), Outcome(Verdict.REFUSED, 9), Outcome(Verdict.APPLIED)))
CLAIM = AppendCall(1, "orders", 0, Batch(b"p" * 16, 7 << 32 | 5, 0, 0, 0, 0, b""), 12)
CLAIMED = messages.Claimed(3, 20, 1 << 32 | 9, 2, 10, 3)
SAMPLES = [
    (
        frames.decode_messages,
        frames.encode_message(
            AT, Member("a", "x"), messages.Append(1, NOTHING, (SAMPLE_ENTRY,), 0, -1, -1, -1)
        ),
    ),
    (frames.decode_messages, frames.encode_message(AT, Member("a", "x"), messages.Fence(2, 3))),
    (frames.decode_messages, frames.encode_message(AT, None, messages.AppendAck(2, 3, 1))),
    (
        frames.decode_appends,
        frames.encode_appends([AppendCall(1, "orders", 0, Batch(b"p" * 16, 0, 1, 0, 0, 1, b"payload"), 12)]),
    ),
    (frames.decode_answers, frames.encode_answers([AppendAnswer(1, messages.Appended(1, 0, 1, 0))])),
    (frames.decode_answers, frames.encode_answers([AppendAnswer(1, Refused(Reason.GAP, "gap"), "n", "a")])),
    (frames.decode_answers, frames.encode_answers([AppendAnswer(1, WRITTEN)])),
    (frames.decode_answers, frames.encode_answers([AppendAnswer(1, CLAIMED)])),
    (frames.decode_appends, frames.encode_appends([CLAIM])),
    (frames.decode_read, frames.encode_read(ReadFrame(0, 0, 0, (SAMPLE_ENTRY,)))),
    (frames.decode_read, frames.encode_read(ReadFrame(0, 9, 9, (SAMPLE_ENTRY,), ((3, 5), (7, 8))))),
]


def test_t13_a_call_without_the_id_of_its_group_has_the_form_that_older_nodes_read():
    call = AppendCall(1, "orders", 0, Batch(b"p" * 16, 0, 1, 0, 0, 1, b"payload"), 12)
    named = frames.encode_appends([replace(call, group_id=7)])
    head = struct.calcsize(">QIBq16sqIqqIBI")
    assert frames.encode_appends([call])[head:] == b"orders" + b"payload"
    assert named[head:] == b"orders" + b"\0\0\0\x07" + b"payload"
    assert [each.group_id for each in frames.decode_appends(named)] == [7]
    with pytest.raises(RemoteViolation, match="too early"):
        list(frames.decode_appends(named[:head + 8]))


def test_l29_an_expected_offset_follows_the_group_and_no_other_call_has_room_for_one():
    call = AppendCall(1, "orders", 0, Batch(b"p" * 16, 0, 1, 0, 0, 1, b"payload", Durability.LOCAL), 12)
    expecting = replace(call, expect=258)
    head = struct.calcsize(">QIBq16sqIqqIBI")
    for group_id, between in ((0, b""), (7, b"\0\0\0\x07")):
        sent = frames.encode_appends([replace(expecting, group_id=group_id)])
        assert sent[head:] == b"orders" + between + b"\0" * 6 + b"\x01\x02" + b"payload"
        assert list(frames.decode_appends(sent)) == [replace(expecting, group_id=group_id)]
        with pytest.raises(RemoteViolation, match="too early"):
            list(frames.decode_appends(sent[:head + 8 + len(between)]))
    assert list(frames.decode_appends(frames.encode_appends([replace(call, expect=0)]))) == [replace(call, expect=0)]


def test_an_answer_with_more_outcomes_than_an_entry_has_records_is_a_violation():
    frame = bytearray(frames.encode_answers([AppendAnswer(1, WRITTEN)]))
    frame[25:29] = (RECORDS_MAX + 1).to_bytes(4)
    with pytest.raises(RemoteViolation, match=f"announces {RECORDS_MAX + 1} outcomes, the limit is {RECORDS_MAX}"):
        list(frames.decode_answers(bytes(frame)))


def test_an_outcome_without_a_known_verdict_is_a_violation():
    frame = bytearray(frames.encode_answers([AppendAnswer(1, WRITTEN)]))
    frame[30] = 9
    with pytest.raises(RemoteViolation, match="verdict 9 is not known"):
        list(frames.decode_answers(bytes(frame)))


def test_an_answer_with_an_outcome_too_few_is_not_sent():
    with pytest.raises(ValueError, match="2 outcomes of 3 records"):
        frames.encode_answers([AppendAnswer(1, replace(WRITTEN, outcomes=WRITTEN.outcomes[:2]))])


@pytest.mark.parametrize(("wrong", "said"), [
    ({"offset": -1}, "claim at offset -1"),
    ({"count": 0}, "batch of 0 records"),
    ({"count": 1 << 21}, "batch of 2097152 records, the limit is 1048576"),
    ({"sequence": -1}, "has batch -1 at 10 to 12, the claim is at 20"),
    ({"base": -1}, "has batch 4294967305 at -1 to 1, the claim is at 20"),
    ({"base": 18}, "at 18 to 20, the claim is at 20"),
    ({"base": 1 << 62}, "the claim is at 20"),
])
def test_l27_an_answer_to_a_claim_with_a_batch_that_cannot_be_is_a_violation(wrong: dict[str, int], said: str):
    frame = frames.encode_answers([AppendAnswer(1, replace(CLAIMED, **wrong))])
    with pytest.raises(RemoteViolation, match=said):
        list(frames.decode_answers(frame))


@pytest.mark.parametrize("number", [4, 255])
def test_an_answer_of_a_kind_that_is_not_known_is_a_violation(number: int):
    frame = bytearray(frames.encode_answers([AppendAnswer(1, CLAIMED)]))
    frame[8] = number
    with pytest.raises(RemoteViolation, match="neither appended, written, claimed nor refused"):
        list(frames.decode_answers(bytes(frame)))


def drain(decode: typing.Callable, frame: bytes) -> object:
    result = decode(frame)
    return result if isinstance(result, ReadFrame) else list(result)


@pytest.mark.parametrize(("decode", "frame"), SAMPLES)
def test_frame_cut_short_is_a_violation(decode: typing.Callable, frame: bytes):
    for length in range(1, len(frame)):
        with pytest.raises(RemoteViolation):
            drain(decode, frame[:length])


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_frame_is_a_violation_or_another_message_never_a_crash(sample: tuple, data: st.DataObject):
    decode, frame = sample
    at = data.draw(st.integers(0, len(frame) - 1))
    damaged = frame[:at] + bytes([data.draw(st.integers(0, 255))]) + frame[at + 1 :]
    try:
        drain(decode, damaged)
    except RemoteViolation as violation:
        assert str(violation)


@given(st.sampled_from([decode for decode, _ in SAMPLES]), st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_never_crash(decode: typing.Callable, noise: bytes):
    try:
        drain(decode, noise)
    except RemoteViolation as violation:
        assert str(violation)


def test_corrupt_entry_in_an_append_is_a_violation():
    append = messages.Append(1, NOTHING, (SAMPLE_ENTRY,), 0, -1, -1, -1)
    frame = frames.encode_message(AT, Member("a", "x"), append)
    with pytest.raises(RemoteViolation, match="checksum"):
        list(frames.decode_messages(frame[:-1] + b"!"))


def append_of(count: int) -> messages.Append:
    entries = tuple(log_of(*[Kind.DATA] * count))
    return messages.Append(3, EntryId(3, -1), entries, count - 1, count - 1, -1, -1)


def test_an_append_of_whole_entries_costs_nothing_more():
    """Where every member keeps every payload, nothing travels that was not there before but one byte."""
    message = append_of(9)
    plain = frames.encode_message(AT, None, message)
    bare = replace(message, entries=tuple(entry.bare() for entry in message.entries))
    payloads = sum(entry.payload_bytes for entry in message.entries)
    assert len(frames.encode_message(AT, None, bare)) == len(plain) - payloads + 2      # a bit for each


def test_what_follows_an_append_is_known_or_the_message_is_skipped():
    frame = bytearray(frames.encode_message(AT, None, append_of(1)))
    frame[frames._LINK.size + frames._APPEND.size - 1] = 8
    skipped: list[str] = []
    assert [] == list(frames.decode_messages(bytes(frame), skipped=skipped.append))
    assert len(skipped) == 1 and "0x8 follows" in skipped[0]


def test_a_member_of_an_append_is_named_whole():
    named = frames.encode_message(AT, None, replace(append_of(1), ensemble=(Member("n", "i"),), copies=3))
    at = frames._LINK.size + frames._APPEND.size + frames._COPIES.size
    assert named[at : at + 4] == b"\1\1ni"
    with pytest.raises(RemoteViolation, match="named without"):
        list(frames.decode_messages(named[:at] + b"\2\0" + named[at + 2 :]))


def test_frame_over_the_limit_is_a_violation():
    with pytest.raises(RemoteViolation, match="limit"):
        list(frames.decode_messages(bytes(frames.FRAME_BYTES_MAX + 1)))


def test_entry_count_beyond_the_frame_is_a_violation():
    frame = bytearray(frames.encode_read(ReadFrame(0, -1, 0, ())))
    frame[-4:] = b"\xff\xff\xff\xff"
    with pytest.raises(RemoteViolation, match="no room"):
        frames.decode_read(bytes(frame))


FENCE = frames.encode_message(AT, Member("a", "x"), messages.Fence(2, 3))


def entry_of_kind(kind: int) -> Entry:
    return control(kind, b"hello", epoch=1, prev=NOTHING, prev_chain=0, logged_ms=5)


UNKNOWN = [
    (bytes((LOG_PLANE, 250)) + FENCE[2:], "message kind 250 of plane 0"),
    (bytes((77,)) + FENCE[1:], "plane 77"),
    (frames.encode_message(AT, None, messages.Append(1, NOTHING, (entry_of_kind(99),), 0, -1, -1, -1)), "kind 99"),
    (frames.encode_message(AT, None, messages.Fetched(0, entry_of_kind(99), 0)), "kind 99"),
]


def test_t10_a_fence_names_the_members_and_to_a_release_before_it_names_none():
    fence = messages.Fence(2, 3, 4, (Member("a", "x"), Member("b", "y")))
    for version, members in ((WIRE_VERSION, fence.members), (WIRE_VERSION_OLDEST, ())):
        parts = frames.message_parts(AT, Member("a", "x"), fence, version)
        [(_, _, found)] = frames.decode_messages(b"".join(parts), version)
        assert (fence, members) == (found, found.members)


def test_a_message_to_several_members_is_encoded_once_for_each_version():
    fence = messages.Fence(2, 3, 4, (Member("a", "x"),))
    bodies: dict[tuple[int, int], bytes] = {}
    versions = (WIRE_VERSION, WIRE_VERSION, WIRE_VERSION_OLDEST)
    sent = [frames.message_parts(AT, Member(name, "x"), fence, version, bodies=bodies)
            for name, version in zip("abc", versions, strict=True)]
    assert sent[0][-1] is sent[1][-1] and 2 == len(bodies)
    for parts, name, version in zip(sent, "abc", versions, strict=True):
        [(_, to, found)] = frames.decode_messages(b"".join(parts), version)
        assert Member(name, "x") == to and bool(found.members) == (version == WIRE_VERSION)


@pytest.mark.parametrize(("unknown", "why"), UNKNOWN, ids=["kind", "plane", "appended", "fetched"])
def test_a_message_of_a_newer_release_is_skipped_and_those_around_it_are_read(unknown: bytes, why: str):
    skipped: list[str] = []
    found = list(frames.decode_messages(FENCE + unknown + FENCE + unknown + FENCE, skipped=skipped.append))
    assert [(AT, Member("a", "x"), messages.Fence(2, 3))] * 3 == found
    assert len(skipped) == 2 and all(why in each for each in skipped)


@pytest.mark.parametrize("unknown", [each for each, _ in UNKNOWN], ids=["kind", "plane", "appended", "fetched"])
def test_a_message_of_a_newer_release_that_is_cut_short_is_a_violation(unknown: bytes):
    for cut in range(1, len(unknown)):
        with pytest.raises(RemoteViolation, match=r"cut short|too early"):
            list(frames.decode_messages(unknown[:cut]))


# --- the work that a hostile peer can make --------------------------------------------------------------------


def bare_append(count: int) -> bytes:
    """A message of `count` headers without payloads."""
    prev, chain, entries = EntryId(3, -1), 0, []
    batch = Batch(b"p" * 16, 0, 1, 1, 1, crc32c(b"x"), b"x")
    for number in range(count):
        entry = seal(
            batch._replace(sequence=number), kind=Kind.DATA, epoch=3, prev=prev, prev_chain=chain, logged_ms=17)
        prev, chain = entry.id, entry.chain
        entries.append(entry.bare())
    return frames.encode_message(AT, None, messages.Append(
        3, EntryId(3, -1), tuple(entries), count - 1, count - 1, -1, -1))


def test_an_append_with_more_headers_than_a_leader_sends_is_refused_before_one_is_read(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(frames, "decode_header", lambda header: read.append(header) or decode_header(header))
    with pytest.raises(RemoteViolation, match=r"announces 60000 entries, the limit is 10240"):
        list(frames.decode_messages(bare_append(60_000)))
    assert not read
    assert len(list(frames.decode_messages(bare_append(9_200)))) == 1
    assert len(read) == 9_200


def test_no_leader_sends_more_entries_than_an_append_may_have() -> None:
    assert -(-Limits().push_bytes_max // HEADER_BYTES) <= frames.ENTRIES_MAX


def test_the_bits_of_bare_headers_are_looked_up_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of as many bits as there are entries makes the work for n entries grow with n * n."""
    asked: list[bytes] = []
    taken = frames.Cursor.entries
    monkeypatch.setattr(
        frames.Cursor, "entries", lambda cursor, count, bare=b"": asked.append(bare) or taken(cursor, count, bare))
    (_, _, message), = frames.decode_messages(bare_append(100))
    assert [b"\xff" * 12 + b"\x0f"] == asked
    assert all(not entry.held for entry in message.entries)
