"""Which wire version two sides of a stream speak, and what a link of the version before carries."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark_core.base.effects import SnapshotDescriptor
from tidemark_core.base.ids import LOG_PLANE, NOTHING, Address, EntryId, Member, ShardId, shard_id
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.node import NODE
from tidemark_core.replication.checkpoint import CHECKPOINT_FORMAT, CHECKPOINT_FORMAT_BEFORE, FOLDS, Checkpoint
from tidemark_core.replication.messages import (
    Append,
    AppendAck,
    BecomeLeader,
    Fence,
    Fenced,
    InstallSnapshot,
    Prepared,
    Reach,
    Rejected,
    Unheard,
)
from tidemark_wire import channel, convert, frames
from tidemark_wire.codecs import Codec, Codecs
from tidemark_wire.wire_version import WIRE_VERSION, WIRE_VERSION_OLDEST, WireVersionMismatch, agreed

AT, TOY = Address(LOG_PLANE, shard_id(1, 2)), Address(77, 5)
THERE = Member("n2", "disk-2")
CHECKPOINT = Checkpoint(EntryId(1, 4), 7, 1000, 300, 5, (), (), (), (), tuple(fold() for fold in FOLDS))
HEAD_BYTES = 49      # of a checkpoint of format 4
SNAPSHOT = SnapshotDescriptor(2, EntryId(1, 9), 5, 9, 100, CHECKPOINT.encode())


# --- agreeing on one ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("oldest", "newest", "version"), [(4, 4, 4), (4, 5, 5), (5, 5, 5), (5, 6, 5), (4, 9, 5), (1, 5, 5), (1, 4, 4)])
def test_both_sides_speak_the_newest_common_version(oldest: int, newest: int, version: int) -> None:
    assert (4, 5) == (WIRE_VERSION_OLDEST, WIRE_VERSION), "the table is about these"
    assert version == agreed(oldest, newest)


@pytest.mark.parametrize(("oldest", "newest"), [(3, 3), (1, 3), (6, 6), (6, 7), (5, 4), (0, 0)])
def test_sides_without_a_common_version_refuse_each_other(oldest: int, newest: int) -> None:
    with pytest.raises(WireVersionMismatch, match="this build speaks 4 to 5: run the same Tidemark release"):
        agreed(oldest, newest)


def test_hello_round_trip() -> None:
    metadata = channel.hello_metadata(node="a", incarnation="i", address="127.0.0.1:1")
    assert channel.Hello("a", "i", "127.0.0.1:1", "", WIRE_VERSION) == channel.read_hello(metadata)


def test_a_build_that_accepts_one_version_finds_the_oldest_where_it_looks() -> None:
    """Builds up to wire version 4 compare one text and know no other key."""
    assert str(WIRE_VERSION_OLDEST) == dict(channel.hello_metadata())[channel.WIRE_VERSION_KEY]
    assert WIRE_VERSION_OLDEST == channel.read_hello([(channel.WIRE_VERSION_KEY, "4")]).version


@pytest.mark.parametrize("said", ["", "3", "6", "x", "-4", " 4", "4.0", "\u0664", "9" * 5000])
def test_another_version_or_none_that_can_be_read_is_refused(said: str) -> None:
    with pytest.raises(WireVersionMismatch, match="same Tidemark release"):
        channel.read_hello([(channel.WIRE_VERSION_KEY, said)])


@pytest.mark.parametrize("newest", ["", "x", "3", "9" * 5000])
def test_a_newest_version_that_cannot_be_is_refused(newest: str) -> None:
    said = [(channel.WIRE_VERSION_KEY, "4"), (channel.WIRE_VERSION_NEWEST_KEY, newest)]
    with pytest.raises(WireVersionMismatch):
        channel.read_hello(said)


def test_a_stream_needs_a_version_and_a_client_may_name_none() -> None:
    with pytest.raises(WireVersionMismatch, match="wire version none was offered"):
        channel.read_hello(None)
    channel.check_caller(None)
    channel.check_caller(channel.hello_metadata())
    channel.check_caller([("user-agent", "x"), (channel.WIRE_VERSION_KEY, "4")])
    with pytest.raises(WireVersionMismatch, match="same Tidemark release"):
        channel.check_caller([("user-agent", "x"), (channel.WIRE_VERSION_KEY, "3")])


# --- a link of the version before ---------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [
    Append(1, NOTHING, (), -1, -1, -1, -1), AppendAck(1, 2, 3, 9), Fence(1, 2), Prepared(2, None),
    Prepared(2, SNAPSHOT),
], ids=lambda message: type(message).__name__)
def test_a_frame_of_the_version_before_has_no_plane(message: object) -> None:
    frame = frames.encode_message(AT, THERE, message, 4)
    older = message
    if isinstance(message, Prepared) and message.snapshot:
        older = replace(message, snapshot=replace(SNAPSHOT, checkpoint=CHECKPOINT.encode(CHECKPOINT_FORMAT_BEFORE)))
    assert [(AT, THERE, older)] == list(frames.decode_messages(frame, 4))
    if older is message and not isinstance(message, AppendAck):
        assert bytes((LOG_PLANE,)) + frame == frames.encode_message(AT, THERE, message, 5)


def test_n11_a_link_of_the_version_before_knows_one_word_for_members_that_do_not_vote() -> None:
    refused = Rejected(1, "Fence", Refused(Reason.NO_REPLICA, "replica is DELETED", 1))
    [(_, _, told)] = frames.decode_messages(frames.encode_message(AT, THERE, refused, 4), 4)
    assert replace(refused, refusal=replace(refused.refusal, reason=Reason.NOT_MEMBER)) == told
    assert [(AT, THERE, refused)] == list(frames.decode_messages(frames.encode_message(AT, THERE, refused, 5), 5))


@pytest.mark.parametrize("message", [AppendAck(1, 2, 3, 9), AppendAck(1, 2, 3), Fenced(1, 2, NOTHING, clock_ms=9)])
def test_c2_a_link_of_the_version_before_says_no_clock(message: AppendAck | Fenced) -> None:
    """Rule C2: a member that says no clock is not heard."""
    for version, clock_ms in ((4, None), (5, message.clock_ms)):
        ((_, _, found),) = frames.decode_messages(frames.encode_message(AT, None, message, version), version)
        assert (message, clock_ms) == (found, found.clock_ms)


def test_o43_a_link_of_the_version_before_has_no_form_for_whom_a_node_reaches() -> None:
    message = Reach((THERE,), (), (Unheard(ShardId(7), 3, (THERE,), 4_000),))
    ((_, _, found),) = frames.decode_messages(frames.encode_message(NODE, None, message))
    assert message == found

    with pytest.raises(frames.NotOnThisWire, match="Reach is new in this release"):
        frames.encode_message(NODE, None, message, 4)


def test_c2_become_leader_hands_on_the_clocks_that_fence_answers_said() -> None:
    message = BecomeLeader(1, 2, (THERE,), (), clocks=((THERE, -5),))
    ((_, _, found),) = frames.decode_messages(frames.encode_message(AT, THERE, message))
    assert ((THERE, -5),) == found.clocks


def test_u54_become_leader_hands_on_the_lineage_where_the_link_knows_it() -> None:
    message = BecomeLeader(1, 2, (THERE,), (), lineage=bytes(range(16)))
    for version, lineage in ((5, message.lineage), (4, b"")):
        ((_, _, found),) = frames.decode_messages(frames.encode_message(AT, THERE, message, version), version)
        assert found.lineage == lineage


@pytest.mark.parametrize("message", [Prepared(2, SNAPSHOT), InstallSnapshot(2, 10, THERE, SNAPSHOT)])
def test_a_snapshot_travels_with_the_checkpoint_format_of_the_link(message: Prepared | InstallSnapshot) -> None:
    for version, form in ((4, CHECKPOINT_FORMAT_BEFORE), (5, CHECKPOINT_FORMAT)):
        ((_, _, found),) = frames.decode_messages(frames.encode_message(AT, THERE, message, version), version)
        assert found.snapshot.checkpoint == CHECKPOINT.encode(form)
        assert CHECKPOINT.encode() == Checkpoint.decode(found.snapshot.checkpoint).encode()


def test_a_link_of_the_version_before_carries_the_log_plane_alone() -> None:
    planes = {**convert.PLANE_CODECS, TOY.plane: Codecs([Codec(3, str, str.encode, bytes.decode)])}
    frame = b"".join(frames.message_parts(TOY, THERE, "hello", planes=planes))
    assert [(TOY, THERE, "hello")] == list(frames.decode_messages(frame, planes=planes)), "a kind is a plane's own"
    with pytest.raises(frames.NotOnThisWire, match="str of plane 77 on a link of wire version 4"):
        frames.message_parts(TOY, THERE, "hello", 4, planes)
    skipped: list[str] = []
    assert [] == list(frames.decode_messages(frame, skipped=skipped.append))
    assert ["plane 77 is not known to this build"] == skipped


def test_a_message_that_the_version_before_has_no_form_for_is_not_sent() -> None:
    beyond = replace(SNAPSHOT, checkpoint=_with_one_more_section(CHECKPOINT.encode()))
    with pytest.raises(frames.NotOnThisWire, match=r"Prepared on a link of wire version 4: .*no place for sections"):
        frames.encode_message(AT, None, Prepared(2, beyond), 4)
    assert frames.encode_message(AT, None, Prepared(2, beyond), 5)


def _with_one_more_section(checkpoint: bytes) -> bytes:
    """Return the checkpoint as a build with one more fold writes it."""
    at = HEAD_BYTES - 4                    # the number of sections ends the head
    sections = int.from_bytes(checkpoint[at:HEAD_BYTES], "big") + 1
    return checkpoint[:at] + sections.to_bytes(4, "big") + checkpoint[HEAD_BYTES:] + b"new1" + bytes(7) + b"\x01x"


def test_two_codecs_for_one_kind_or_message_are_refused() -> None:
    codec = Codec(3, str, str.encode, bytes.decode)
    for other in (replace(codec, message=bytes), replace(codec, kind=4)):
        with pytest.raises(ValueError, match="a kind or a message is in the table twice"):
            Codecs([codec, other])
