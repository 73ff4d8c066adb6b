"""The rows of a producer table: what a checkpoint writes of it, and what a restart finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.effects import Delete, DeleteRange, DropAfter, Put, PutCheckpoint, PutEntry, Write
from tidemark_core.base.entry import Entry
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import EntryId
from tidemark_core.base.limits import Limits
from tidemark_core.replication import producers
from tidemark_core.replication.checkpoint import FOLDS, Checkpoint
from tidemark_core.replication.log import recovery_start
from tidemark_core.replication.producer_rows import PRODUCERS, span_of
from tidemark_core.replication.producers import IDLE_MS_MAX, PURGED_MAX, Known, Place, ProducerTable
from tidemark_core.replication.replica import Replica, Role
from tidemark_core.shard import Shard

from tests.core.support import SHARD, A, Author, B, C, Image, StoredImages

MANY = [bytes((number,)) * 16 for number in range(1, 8)]
ROWS = 4


def a_replica(image: Image, **limits: int) -> Replica:
    """Start a follower from what a store holds."""
    stored = StoredImages({SHARD: image})
    state, checkpoint = stored.unit(SHARD)
    return Replica.restore(
        SHARD, A, Limits(checkpoint_rows=ROWS, **limits), state, checkpoint,
        stored.headers(SHARD, recovery_start(checkpoint)), FOLDS, stored.rows(PRODUCERS, *span_of(SHARD)))


def an_image(checkpoint: bytes | None = None, commit: int = -1) -> Image:
    replica = Replica(SHARD, A, Limits())
    replica.update(epoch=1, election=10, role=Role.FOLLOWER, ensemble=(A, B, C), commit=commit, confirmed=commit)
    return Image(replica.state.encode(), checkpoint)


def put(image: Image, replica: Replica, writes: Sequence[Write]) -> None:
    """Make one write durable, with the state that a persist adds."""
    for write in replica.persist(writes).writes:
        image.apply(write)


def trimmed(image: Image, replica: Replica, first: int) -> list[int]:
    """Trim a follower as its shard does; return how many rows each write took along."""
    shard, rows = Shard(replica), []
    effects = [replica.persist(writes)] if (writes := replica.trim_to(first)) else []
    while effects:
        [persist] = effects
        rows.append(len(rows_of(persist.writes)))
        for write in persist.writes:
            image.apply(write)
        effects = [each for feed in persist.then for each in shard.step(0, feed.event)]
    return rows


def rows_of(writes: Sequence[Write]) -> list[Write]:
    return [write for write in writes if isinstance(write, Put | Delete)]


def taken(replica: Replica, image: Image, entries: Sequence[Entry], commit: int) -> list[Write]:
    """Let a follower take entries and commit up to an offset; return what was written."""
    for entry in entries:
        replica.log.append(entry)
    replica.advance_commit(commit)
    replica.advance_confirmed(commit, commit)
    writes: list[Write] = [*(PutEntry(entry) for entry in entries), *replica.checkpoint_if_due()]
    put(image, replica, writes)
    return writes


def everything(table: ProducerTable) -> list[tuple[bytes, Known]]:
    return list(table.snapshot().items())


def a_full_table(count: int) -> tuple[Author, bytes]:
    """Return an author whose log has a batch of each of so many producers, and the checkpoint of a snapshot of it."""
    author = Author()
    for number in range(count):
        author.data(producer=number.to_bytes(16, "big"))
    author.log.settle(author.log.head.offset)
    return author, author.log.checkpoint().encode()


def test_l25_a_checkpoint_writes_what_has_changed_and_leaves_the_rest_of_the_table_alone() -> None:
    author, checkpoint = a_full_table(500)
    image = an_image(checkpoint, author.log.head.offset)
    replica = a_replica(image, checkpoint_entries=3)
    trimmed(image, replica, 1)
    assert len(image.rows) == 500

    written: list[int] = []
    for round_ in range(1, 6):
        entries = [author.data(producer=number.to_bytes(16, "big"), sequence=round_) for number in (7, 9, 400)]
        writes = taken(replica, image, entries, entries[-1].last)
        assert len([write for write in writes if isinstance(write, PutCheckpoint)]) == 1
        written.append(len(rows_of(writes)))
        [head] = [write.checkpoint for write in writes if isinstance(write, PutCheckpoint)]
        assert len(head) < 500, "the checkpoint itself has none of the producers"

    assert written == [3] * 5
    assert everything(a_replica(image).log.producers) == everything(replica.log.producers)


def test_l25_no_turn_encodes_more_than_a_few_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot brings the whole table; the rows are written in parts, each with a turn's own entries."""
    count = 50 * ROWS
    author, checkpoint = a_full_table(count)
    image = an_image(checkpoint, author.log.head.offset)
    replica = a_replica(image, checkpoint_entries=8)
    encoded: list[bytes] = []
    plain, whole = Known.encode, ProducerTable.encode

    def counting(self: Known) -> bytes:
        encoded.append(plain(self))
        return encoded[-1]

    monkeypatch.setattr(Known, "encode", counting)
    monkeypatch.setattr(ProducerTable, "encode", lambda self: pytest.fail("the whole table is encoded"))
    per_turn, turns = [], 0
    while not (heads := [write for write in taken(
        replica, image, [author.data(producer=MANY[turns % 3])], author.log.head.offset
    ) if isinstance(write, PutCheckpoint)]):
        turns += 1
        per_turn.append(len(encoded))
        encoded.clear()
        assert turns < 2 * count
    monkeypatch.setattr(ProducerTable, "encode", whole)

    assert turns >= count // ROWS - 1 and max(per_turn) <= ROWS and len(encoded) <= ROWS + 1
    assert ProducerTable.tag not in heads[0].checkpoint
    assert everything(a_replica(image).log.producers) == everything(replica.log.producers)


def test_l25_a_trim_writes_the_producers_in_parts_and_then_trims() -> None:
    count = 50 * ROWS
    author, checkpoint = a_full_table(count)
    image = an_image(checkpoint, author.log.head.offset)
    replica = a_replica(image)
    first = author.log.head.offset
    written = trimmed(image, replica, first)

    assert [ROWS] * (count // ROWS) == written
    assert first == replica.log.first
    assert image.checkpoint is not None and ProducerTable.tag not in image.checkpoint
    assert everything(a_replica(image).log.producers) == everything(replica.log.producers)


def test_l25_a_trim_that_is_not_done_ends_with_its_epoch() -> None:
    author, checkpoint = a_full_table(50 * ROWS)
    image = an_image(checkpoint, author.log.head.offset)
    replica = a_replica(image)
    [step] = replica.persist(replica.trim_to(9)).then
    replica.update(epoch=2)

    assert [] == Shard(replica).step(0, step.event)
    assert 0 == replica.log.first


def test_l25_parts_count_for_nothing_until_the_checkpoint_leaves_the_table_to_them() -> None:
    """A process that dies between them starts from the checkpoint, and rows of the earlier life go."""
    author, checkpoint = a_full_table(3 * ROWS)
    image = an_image(checkpoint, author.log.head.offset)
    first = a_replica(image)
    stray = (PRODUCERS, span_of(SHARD)[0] + b"never in the log")
    writes = taken(first, image, [author.data(producer=MANY[0])], author.log.head.offset)
    assert len(rows_of(writes)) == ROWS and any(isinstance(write, DeleteRange) for write in writes)
    image.rows[stray] = Known(0, (Place(0, 1, 0, 1),)).encode()

    again = a_replica(image)

    assert everything(again.log.producers) == everything(first.log.producers)
    put(image, again, again.checkpoint_if_due())
    assert stray not in image.rows


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, Any]]:
    one = st.one_of(
        st.tuples(st.just("append"), st.sampled_from(MANY)),
        st.tuples(st.just("append"), st.sampled_from(MANY)),
        st.tuples(st.just("append"), st.sampled_from(MANY)),
        st.tuples(st.just("commit"), st.integers(0, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 3)),
        st.tuples(st.just("due"), st.none()),
        st.tuples(st.just("trim"), st.integers(0, 4)),
        st.tuples(st.just("restart"), st.none()),
    )
    return draw(st.lists(one, max_size=60))


@given(steps(), st.integers(2, 7), st.booleans())
def test_l25_a_restart_at_any_write_finds_the_table_of_the_log(
    story: list[tuple[str, Any]], limit: int, seeded: bool
) -> None:
    """The log that never restarts says what the table is: appends, truncation, eviction, trims, parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producers, "PRODUCERS_MAX", limit)
        author, image = Author(), an_image()
        if seeded:
            for producer in MANY[:limit]:
                author.data(producer=producer)
            author.log.settle(author.log.head.offset)
            image = an_image(author.log.checkpoint().encode(), author.log.head.offset)
        replica = a_replica(image, checkpoint_entries=5)
        for what, argument in story:
            match what:
                case "append":
                    sequence = author.log.producers.judge(argument, 0, 0).expected
                    entry = author.data(producer=argument, sequence=sequence)
                    replica.log.append(entry)
                    put(image, replica, [PutEntry(entry)])
                case "commit":
                    commit = max(replica.log.floor.id.offset, replica.log.head.offset - argument)
                    replica.advance_commit(commit)
                    replica.advance_confirmed(commit, commit)
                    put(image, replica, [])
                case "truncate":
                    to = max(replica.log.floor.id.offset, replica.log.head.offset - argument)
                    author = author.fork(EntryId(1, to), 1)
                    assert replica.log.truncate(EntryId(1, to))
                    put(image, replica, [DropAfter(to)])
                case "due":
                    put(image, replica, replica.checkpoint_if_due())
                case "trim":
                    trimmed(image, replica, replica.log.floor.id.offset + 1 - argument)
                case "restart":
                    replica = a_replica(image, checkpoint_entries=5)
            assert everything(replica.log.producers) == everything(author.log.producers), what
        assert everything(a_replica(image).log.producers) == everything(author.log.producers)


def test_l25_a_shard_that_was_idle_for_a_week_forgets_in_parts() -> None:
    _, checkpoint = a_full_table(PURGED_MAX + 10)
    found = Checkpoint.decode(checkpoint).fold(ProducerTable)
    assert len(found) == PURGED_MAX + 10

    found.purge(IDLE_MS_MAX + 1)
    assert len(found) == 10
    found.purge(IDLE_MS_MAX + 1)

    [newest] = everything(found)
    saved = list(found.save(found.unsaved))
    assert len(saved) == PURGED_MAX + 10 and [each for each in saved if each[1] is not None] == [newest]


@pytest.mark.parametrize("cut", [0, 8, 9, 20])
def test_a_row_that_is_cut_short_is_damage(cut: int) -> None:
    author, _ = a_full_table(2)
    image = an_image()
    replica = a_replica(image)
    for entry in author.entries:
        replica.log.append(entry)
    replica.advance_commit(1)
    replica.advance_confirmed(1, 1)
    put(image, replica, [*(PutEntry(entry) for entry in author.entries), *replica.trim_to(1)])
    [*_, place] = image.rows
    image.rows[place] = image.rows[place][:cut]

    with pytest.raises(RemoteViolation, match="cut short"):
        a_replica(image)
