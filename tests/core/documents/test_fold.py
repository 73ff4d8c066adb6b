"""The fold of documents as a pure function: the model says what entries do, and every slicing must agree with it."""

from __future__ import annotations

import random

import pytest
from tidemark_core.documents import fold as folding
from tidemark_core.documents.payload import Expired, Outcome, Verdict
from tidemark_core.documents.pinning import PINS_MAX
from tidemark_core.documents.reading import Behind, NotPinned, get, get_at, scan, scan_at
from tidemark_core.documents.rows import (
    BYSEQ,
    DIGEST_MASK,
    DOCS,
    EFFECTS,
    EXPIRY,
    FAMILIES,
    PINNED,
    SUMMARY,
    Summary,
    decode_row,
    hash_of,
    pinned_key,
    pinned_of,
    seqno_of,
    wipe,
)
from tidemark_core.documents.sweeping import collected, purgeable, swept

from tests.core.documents.support import (
    KEYS,
    DocumentAuthor,
    Documents,
    MemoryRows,
    Model,
    cuts_of,
    delete,
    put,
    random_log,
)
from tests.core.support import SHARD

LOGS = range(12)


def applied(seqno: int = 0) -> Outcome:
    return Outcome(Verdict.APPLIED, seqno)


def refused(seqno: int = 0) -> Outcome:
    return Outcome(Verdict.REFUSED, seqno)


def shown(documents: Documents) -> dict[bytes, tuple[int, int, bytes]]:
    return {each.key: each[1:] for each in scan(documents.rows, SHARD)}


def check(documents: Documents, model: Model) -> None:
    """Compare everything stored with the model."""
    assert shown(documents) == {key: tuple(version) for key, version in model.documents.items()}
    assert documents.outcomes == model.outcomes
    summary = documents.summary
    assert summary.count == len(model.documents)
    hashes = (hash_of(key, *version) for key, version in model.documents.items())
    assert summary.digest == sum(int.from_bytes(each, "big") for each in hashes) & DIGEST_MASK
    assert summary.purged == model.purged
    assert summary.expiring == sum(version.expires_at_ms > 0 for version in model.documents.values())
    assert {name: pin.at for name, pin in summary.pins.items()} == {name: at for name, (at, _) in model.pins.items()}
    rows = documents.rows
    stored = {key[8:]: decode_row(value) for key, value in rows.scan(DOCS)}
    assert {seqno_of(key): value for key, value in rows.scan(BYSEQ)} == {
        row.seqno: bytes((row.live,)) + key for key, row in stored.items()
    }
    tombstones = {key: row.seqno for key, row in stored.items() if not row.live}
    assert tombstones.items() <= model.deleted.items()
    assert all(model.deleted[key] <= model.purged for key in model.deleted.keys() - tombstones.keys())
    assert summary.tombstones == len(tombstones)
    assert len(list(rows.scan(EXPIRY))) == summary.expiring + summary.tombstones
    for name, (at, held) in model.pins.items():
        assert {each.key: each[1:] for each in scan_at(rows, SHARD, name, at)} == {k: tuple(v) for k, v in held.items()}
        for key in KEYS:
            found = get_at(rows, SHARD, name, at, key)
            assert (found and tuple(found[1:])) == (held.get(key) and tuple(held[key]))


# --- U46-U50 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", LOGS)
def test_u46_the_fold_equals_the_model_at_every_cut(seed: int) -> None:
    """Rules U46, U48, U49, U50, U51, U52, U70, U71, U73, with slices of any size."""
    dice = random.Random(seed)
    author = random_log(dice, 120)
    documents = Documents()
    for cut in cuts_of(author):
        if dice.random() < 0.3:
            documents.fold(author, cut, slice_entries=dice.choice((1, 2, 5, 1 << 20)))
            check(documents, Model(author.entries, cut))


def test_u46_what_a_rollback_covers_has_no_effect() -> None:
    """W16: confirmed jumps over the rollback, and the entry in front of it is never folded."""
    author = DocumentAuthor()
    author.write(put(b"kept"))
    author.write(put(b"gone"))
    author.pin("cut")
    author.purge(0)
    author.rollback(1)
    documents = Documents()

    documents.fold(author)

    assert list(shown(documents)) == [b"kept"]
    assert documents.summary == Summary(4, 1, count=1, digest=documents.summary.digest)
    assert documents.outcomes == {0: (applied(),)}


def test_u47_a_batch_holds_whole_entries_with_the_cut_behind_them() -> None:
    author = DocumentAuthor()
    author.write(put(b"a"), put(b"b", ttl_ms=5), delete(b"a"))
    folded = Documents().fold(author)

    assert folded is not None
    assert {write.family for write in folded.writes} == {DOCS, BYSEQ, EXPIRY, EFFECTS, SUMMARY}
    assert folded.writes[-1].family == SUMMARY
    assert folded.summary.applied == 2


def test_u47_a_wipe_removes_all_rows_of_one_shard_and_of_no_other() -> None:
    author = random_log(random.Random(3), 80)
    documents = Documents()
    documents.fold(author)
    held = {family: dict(rows) for family, rows in documents.rows.families.items()}
    assert set(held) == set(FAMILIES)
    documents.rows.apply(wipe(SHARD + 1))
    assert held == documents.rows.families

    documents.rows.apply(wipe(SHARD))

    assert not any(documents.rows.families.values())


def test_u48_byseq_has_one_row_for_each_row_of_docs() -> None:
    author = DocumentAuthor()
    author.write(put(b"a", b"1"), put(b"a", b"2"), put(b"b"))
    author.write(put(b"a", b"3"), delete(b"b"))
    documents = Documents()
    documents.fold(author, slice_entries=1)

    assert {seqno_of(key): value for key, value in documents.rows.scan(BYSEQ)} == {3: b"\x01a", 4: b"\x00b"}


def test_u49_conditions_are_judged_in_order() -> None:
    author = DocumentAuthor()
    author.write(put(b"other"))
    author.write(put(b"a", expected=0), put(b"a", expected=0), put(b"a", expected=1), delete(b"a", expected=1))
    author.write(put(b"a", expected=1), put(b"a", expected=3), delete(b"a", expected=6), put(b"a", expected=6))
    documents = Documents()
    documents.fold(author)

    assert documents.outcomes[1] == (applied(), refused(1), applied(1), refused(3))
    assert documents.outcomes[5] == (refused(3), applied(3), applied(6), refused(0))


def test_u49_a_tombstone_never_matches() -> None:
    author = DocumentAuthor()
    author.write(put(b"a"), put(b"b"))
    author.write(delete(b"b"))
    author.write(put(b"b", expected=2), put(b"b", expected=0))
    documents = Documents()
    documents.fold(author, slice_entries=1)

    assert documents.outcomes[3] == (refused(0), applied(0))


def test_u49_one_refusal_refuses_all_of_an_atomic_entry() -> None:
    author = DocumentAuthor()
    author.write(put(b"a"), put(b"b"))
    author.write(put(b"a", b"new"), put(b"b", b"new", expected=9), atomic=True)
    author.write(put(b"a", b"newer"), put(b"b", b"newer", expected=1), atomic=True)
    documents = Documents()
    documents.fold(author, 3)
    assert {key: value for key, (_, _, value) in shown(documents).items()} == {b"a": b"v", b"b": b"v"}
    assert documents.outcomes[2] == (Outcome(Verdict.ABORTED, 0), refused(1))

    documents.fold(author)

    assert {key: value for key, (_, _, value) in shown(documents).items()} == {b"a": b"newer", b"b": b"newer"}


def test_u49_an_entry_that_cannot_be_read_changes_nothing_and_says_so() -> None:
    author = DocumentAuthor()
    author.write(put(b"a"))
    author.data(3, payload=b"no document writes")
    author.note(author.pin("x").kind, b"\xff")
    author.write(put(b"b"))
    documents = Documents()
    documents.fold(author)

    assert documents.outcomes[1] == (Outcome(Verdict.MALFORMED),) * 3
    assert set(shown(documents)) == {b"a", b"b"}
    assert documents.summary.applied == author.log.head.offset


def test_u50_outcomes_are_stored_with_the_rows() -> None:
    author = random_log(random.Random(7), 60)
    documents = Documents()
    documents.fold(author, slice_entries=3)

    assert {seqno_of(key) for key, _ in documents.rows.scan(EFFECTS)} == set(documents.outcomes)


# --- U51, U52 ---------------------------------------------------------------------------------------------


def test_u51_expire_deletes_the_version_it_names_once_its_time_is_over() -> None:
    author = DocumentAuthor()
    author.write(put(b"a", ttl_ms=10), put(b"b", ttl_ms=10), put(b"c"), logged_ms=100)
    author.write(put(b"b", ttl_ms=10), logged_ms=101)
    everything = tuple(Expired(key, seqno) for seqno, key in enumerate((b"a", b"b", b"c", b"b")))
    author.expire(*everything, logged_ms=109)
    documents = Documents()
    documents.fold(author)
    assert set(shown(documents)) == {b"a", b"b", b"c"}

    author.expire(*everything, logged_ms=110)
    documents.fold(author)

    assert set(shown(documents)) == {b"b", b"c"}
    row = documents.row(b"a")
    assert row is not None and (row.seqno, row.live, row.ms, row.expired) == (8, False, 110, True)
    author.write(delete(b"b"), logged_ms=111)
    documents.fold(author)
    deleted = documents.row(b"b")
    assert deleted is not None and (deleted.live, deleted.expired) == (False, False)


def swept_all(documents: Documents) -> int:
    tombstones = [row for row in documents.rows.scan(EXPIRY) if row[0][8] == 1]
    writes, keys = swept(SHARD, documents.summary, tombstones)
    documents.rows.apply(writes)
    return len(keys)


def test_u52_sweeping_changes_no_answer() -> None:
    """A member that sweeps and one that never does fold alike: outcomes, documents, digest and pins are equal."""
    assert sum(_compared_while_one_sweeps(seed) for seed in LOGS) > 15


def _compared_while_one_sweeps(seed: int) -> int:
    dice = random.Random(seed)
    author = random_log(dice, 150)
    plain, tidy = Documents(), Documents()
    removed = 0
    for cut in cuts_of(author):
        plain.fold(author, cut)
        tidy.fold(author, cut)
        if dice.random() < 0.3:
            removed += swept_all(tidy)
            tidy.rows.apply(collected(tidy.summary, tidy.rows.scan(PINNED)))
        assert plain.outcomes == tidy.outcomes
        assert plain.summary.agrees_with(tidy.summary)
        assert shown(plain) == shown(tidy)
        for name, pin in plain.summary.pins.items():
            assert list(scan_at(plain.rows, SHARD, name, pin.at)) == list(scan_at(tidy.rows, SHARD, name, pin.at))

    return removed


def test_u52_a_purge_ends_at_a_cut_below_what_is_young_or_pinned() -> None:
    author = DocumentAuthor()
    author.write(put(b"a"), put(b"b"), put(b"c"), put(b"d"))
    author.write(delete(b"a"), delete(b"b"), logged_ms=10)
    author.write(delete(b"c"), logged_ms=20)
    author.write(delete(b"d"), logged_ms=30)
    documents = Documents()
    documents.fold(author)
    found = list(documents.rows.scan(EXPIRY))

    assert [purgeable(found, before_ms, 99) for before_ms in (10, 11, 21, 31)] == [-1, 5, 6, 7]
    assert [purgeable(found, 99, at_most) for at_most in (3, 4, 5, 6, 99)] == [-1, -1, 5, 6, 7]


# --- pins -------------------------------------------------------------------------------------------------


def test_u70_a_pin_keeps_its_cut_when_its_lease_is_renewed() -> None:
    author = DocumentAuthor()
    author.write(put(b"a", b"1"))
    author.pin("backup", 100, logged_ms=5)
    author.write(put(b"a", b"2"))
    author.pin("backup", 100, logged_ms=50)
    documents = Documents()
    documents.fold(author, slice_entries=1)

    pin = documents.summary.pins["backup"]
    assert (pin.at, pin.until_ms, pin.count) == (1, 150, 1)
    found = get_at(documents.rows, SHARD, "backup", 1, b"a")
    assert found is not None and found.value == b"1"
    assert pin.digest == int.from_bytes(hash_of(b"a", 0, 0, b"1"), "big")


def test_u70_only_an_unpin_ends_a_pin() -> None:
    author = DocumentAuthor()
    author.pin("backup", 1, logged_ms=5)
    author.write(put(b"a"), logged_ms=5_000)
    documents = Documents()
    documents.fold(author)
    assert list(documents.summary.pins) == ["backup"]

    author.unpin("backup")
    documents.fold(author)

    assert not documents.summary.pins


def test_u70_pins_of_a_shard_are_bounded() -> None:
    author = DocumentAuthor()
    for number in range(PINS_MAX + 1):
        author.pin(f"pin {number}")
    documents = Documents()
    documents.fold(author)

    assert len(documents.summary.pins) == PINS_MAX
    assert f"pin {PINS_MAX}" not in documents.summary.pins


def test_u71_one_more_row_for_the_first_overwrite_behind_a_pin_and_none_without_one() -> None:
    author = DocumentAuthor()
    author.write(put(b"a"), put(b"b"))
    author.write(put(b"a"))
    documents = Documents()
    documents.fold(author)
    assert not list(documents.rows.scan(PINNED))
    author.pin("cut")
    author.write(put(b"a"), put(b"a"), put(b"c"), delete(b"c"))

    documents.fold(author)

    assert [pinned_of(key) for key, _ in documents.rows.scan(PINNED)] == [(b"a", 2)]


@pytest.mark.parametrize("seed", LOGS)
def test_u71_collection_keeps_what_any_pin_shows(seed: int) -> None:
    author = random_log(random.Random(seed), 120)
    documents = Documents()
    for cut in cuts_of(author):
        documents.fold(author, cut)
        documents.rows.apply(collected(documents.summary, documents.rows.scan(PINNED)))
        for name, (at, held) in Model(author.entries, cut).pins.items():
            assert {each.key: each[1:] for each in scan_at(documents.rows, SHARD, name, at)} == held


def test_u71_rows_of_pins_sort_by_key_whatever_bytes_are_in_it() -> None:
    dice = random.Random(5)
    keys = [bytes(dice.choice((0, 1, 97, 255)) for _ in range(dice.randrange(1, 5))) for _ in range(300)]
    found = sorted((pinned_key(SHARD, key, seqno), key, seqno) for key in keys for seqno in (1, 300))

    assert [(key, seqno) for _, key, seqno in found] == sorted((key, seqno) for key in keys for seqno in (1, 300))
    assert all(pinned_of(row) == (key, seqno) for row, key, seqno in found)


def test_u72_a_member_says_whether_it_is_behind_or_the_pin_is_over() -> None:
    author = DocumentAuthor()
    author.write(put(b"a"))
    at = author.pin("cut").base
    documents = Documents()
    for _ in range(2):
        with pytest.raises(Behind):
            get_at(documents.rows, SHARD, "cut", at, b"a")
        documents.fold(author, 0)
    documents.fold(author)
    assert get_at(documents.rows, SHARD, "cut", at, b"a") == get(documents.rows, SHARD, b"a")
    for name, cut in (("other", at), ("cut", at - 1)):
        with pytest.raises(NotPinned):
            next(scan_at(documents.rows, SHARD, name, cut))

    author.unpin("cut")
    documents.fold(author)

    with pytest.raises(NotPinned):
        get_at(documents.rows, SHARD, "cut", at, b"a")


# --- digest -----------------------------------------------------------------------------------------------


def test_u73_the_digest_depends_on_every_field_of_every_live_document() -> None:
    base = {(b"a", 1, 0, b"x"), (b"ab", 2, 0, b"y")}
    others = [
        base - {(b"a", 1, 0, b"x")}, base | {(b"c", 3, 0, b"")}, {(b"a", 1, 0, b"x"), (b"a", 2, 0, b"by")},
        {(b"a", 1, 5, b"x"), (b"ab", 2, 0, b"y")}, {(b"a", 2, 0, b"x"), (b"ab", 1, 0, b"y")},
    ]

    def digest(documents: set[tuple[bytes, int, int, bytes]]) -> int:
        return sum(int.from_bytes(hash_of(*each), "big") for each in documents) & DIGEST_MASK

    assert len({digest(each) for each in (base, *others)}) == 1 + len(others)


def test_u73_a_digest_returns_to_zero_with_the_last_document() -> None:
    author = DocumentAuthor()
    author.write(put(b"a"), put(b"b"), put(b"a"))
    author.write(delete(b"a"), delete(b"b"))
    documents = Documents()
    documents.fold(author, 2)
    assert documents.summary.digest

    documents.fold(author)

    assert (documents.summary.count, documents.summary.digest) == (0, 0)


def test_u73b_members_keep_digests_at_the_same_cuts_whatever_their_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "DIGEST_EVERY", 8)
    for seed in range(20):
        author = random_log(random.Random(seed), 60)
        kept = []
        for slice_entries in (1, 3, 1 << 30):
            member, found = Documents(), []
            member.on_folded = found.extend
            member.fold(author, slice_entries=slice_entries)
            kept.append(found)
        assert kept[0] == kept[1] == kept[2]
        assert len(kept[0]) > 3


def test_u73_members_that_folded_equally_far_agree() -> None:
    author = random_log(random.Random(11), 90)
    one, other = Documents(), Documents()
    one.fold(author, slice_entries=1)
    other.fold(author)
    assert one.summary.agrees_with(other.summary)
    assert one.rows.families == other.rows.families

    author.write(put(b"more"))
    other.fold(author)

    assert not one.summary.agrees_with(other.summary)
    assert isinstance(one.rows, MemoryRows)
