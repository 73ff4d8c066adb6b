"""The file of a view: whole snapshots with their position in one transaction, and a digest (U55, U58, U73)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.document import Document
from tidemark.errors import ViewDiverged, ViewFailed, ViewLocked, ViewRefused
from tidemark.view_file import Feeder, named
from tidemark.view_store import ViewStore
from tidemark_core.documents.rows import hash_of
from tidemark_core.upr.messages import Op, Row, Summary

GROUP = "catalog"
Open = Callable[[], ViewStore]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    return lambda: ViewStore(tmp_path / "view.db", GROUP)


def put(seqno: int, key: bytes, value: bytes = b"v", expires_at_ms: int = 0) -> Row:
    return Row(seqno, key, Op.PUT, value, expires_at_ms)


def deleted(seqno: int, key: bytes, op: Op = Op.DELETE) -> Row:
    return Row(seqno, key, op)


def summary_of(rows: Iterable[Row]) -> Summary:
    live: dict[bytes, Row] = {}
    for row in rows:
        live.pop(row.key, None)
        if row.op is Op.PUT:
            live[row.key] = row
    total = sum(
        int.from_bytes(hash_of(row.key, row.seqno, row.expires_at_ms, row.value), "big") for row in live.values())
    return Summary(len(live), (total % (1 << 128)).to_bytes(16, "big"))


def keys(store: ViewStore) -> list[bytes]:
    return [document.key for document in store.scan()]


def test_u55_rows_are_shown_with_their_position_and_none_before(opened: Open) -> None:
    store = opened()
    store.stage(0, [put(1, b"a"), put(2, b"b", b"w", 77)])
    assert keys(store) == [] and store.position == ""

    state = store.apply(0, 2, "token", fresh=True, summary=summary_of([put(1, b"a"), put(2, b"b", b"w", 77)]))

    assert store.scan() == [Document(b"a", b"v", 1, 0), Document(b"b", b"w", 2, 0, 77)]
    assert store.position == "token" and store.states() == {0: state}
    store.close()
    again = opened()
    assert again.position == "token" and keys(again) == [b"a", b"b"], "a restart begins where it was"


def test_u55_a_crash_while_the_file_is_made_leaves_nothing_or_a_whole_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each statement another connection looks at what a crash would leave."""
    file, connect = tmp_path / "view.db", sqlite3.connect
    left: list[tuple[list[str], dict[str, str]]] = []

    def look(_: str) -> None:
        with closing(connect(file)) as other:
            tables = sorted(name for (name,) in other.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
            left.append((tables, dict(other.execute("SELECT * FROM facts")) if "facts" in tables else {}))

    def watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made = connect(*arguments, **options)
        made.set_trace_callback(look)
        return made

    monkeypatch.setattr(sqlite3, "connect", watched)
    ViewStore(file, GROUP).close()

    whole = (["documents", "facts", "shards"], {"format": "1", "group": GROUP, "position": ""})
    assert left[0] == ([], {}) and left[-1] == whole
    assert all(each in (left[0], whole) for each in left), left


def test_u55_a_crash_before_the_end_leaves_nothing_of_a_snapshot(opened: Open) -> None:
    store = opened()
    store.stage(0, [put(1, b"a")])
    store.apply(0, 1, "one", fresh=True)
    store.stage(0, [put(2, b"b"), deleted(3, b"a")])
    store.close()

    again = opened()
    assert keys(again) == [b"a"] and again.position == "one"
    again.stage(0, [put(4, b"c")])
    again.apply(0, 4, "two", fresh=False)
    assert keys(again) == [b"a", b"c"], "what was staged before the crash is not applied later"


def test_u62_a_discarded_snapshot_leaves_nothing(opened: Open) -> None:
    store = opened()
    store.stage(0, [put(1, b"a")])
    store.stage(1, [put(1, b"z")])
    store.discard(0)
    store.apply(0, 1, "one", fresh=True)
    store.apply(1, 1, "two", fresh=True)
    assert keys(store) == [b"z"], "and another shard keeps its own"


def test_u58_a_fresh_snapshot_replaces_its_shard_and_no_other(opened: Open) -> None:
    store = opened()
    for shard, key in ((0, b"a"), (1, b"z")):
        store.stage(shard, [put(1, key)])
        store.apply(shard, 1, f"at{shard}", fresh=True)
    store.stage(0, [put(9, b"b")])
    state = store.apply(0, 9, "rebuilt", fresh=True, summary=summary_of([put(9, b"b")]))
    assert keys(store) == [b"b", b"z"] and state.documents == 1


def test_u55_an_older_row_never_replaces_a_newer_one(opened: Open) -> None:
    store = opened()
    store.stage(0, [put(5, b"a", b"new"), put(6, b"b")])
    store.apply(0, 6, "one", fresh=True)
    store.stage(0, [put(3, b"a", b"old"), deleted(4, b"b")])
    store.apply(0, 6, "two", fresh=False, summary=summary_of([put(5, b"a", b"new"), put(6, b"b")]))
    assert store.get_many([b"a"])[b"a"].value == b"new" and keys(store) == [b"a", b"b"]


def test_u73_a_digest_that_differs_stops_the_view_at_its_last_equal_cut(opened: Open) -> None:
    store = opened()
    store.stage(0, [put(1, b"a")])
    store.apply(0, 1, "one", fresh=True)
    store.stage(0, [put(2, b"b")])

    with pytest.raises(ViewDiverged, match="at seqno 2 the view has 2 documents") as caught:
        store.apply(0, 2, "two", fresh=False, summary=summary_of([put(1, b"a"), put(2, b"b"), put(2, b"c")]))

    assert (caught.value.shard, caught.value.seqno, caught.value.last_equal) == (0, 2, 1)
    assert keys(store) == [b"a"] and store.position == "one" and store.states()[0].seqno == 1


def test_only_one_process_feeds_a_view(opened: Open) -> None:
    first, second = opened(), opened()
    first.stage(0, [put(1, b"a")])
    first.apply(0, 1, "one", fresh=True)
    second.stage(0, [put(1, b"a")])
    with pytest.raises(ViewRefused, match="another process feeds this view"):
        second.apply(0, 1, "one", fresh=True)
    with pytest.raises(ViewRefused, match="another process feeds this view"):
        second.advance(0, 5, "five")
    first.advance(0, 5, "five")
    assert first.states()[0].seqno == 5


# --- other programs on the file


def test_a_full_disk_names_itself_and_the_view_goes_on_once_there_is_room(opened: Open, tmp_path: Path) -> None:
    store = opened()
    store.stage(0, [put(1, b"a")])
    store.apply(0, 1, "one", fresh=True)
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    store.stage(0, [put(2, b"b", bytes(100_000))])
    with pytest.raises(ViewFailed, match=r"view\.db: database or disk is full \(SQLITE_FULL\)"), named(store.path):
        store.apply(0, 2, "two", fresh=False)
    assert keys(store) == [b"a"] and store.position == "one"
    store._db.execute(f"PRAGMA max_page_count = {pages + 100}")
    store.apply(0, 2, "two", fresh=False)
    assert keys(store) == [b"a", b"b"]


def test_an_index_that_refuses_a_document_is_named(opened: Open) -> None:
    store = opened()
    store._db.execute("CREATE UNIQUE INDEX one_each ON documents (value)")
    store.stage(0, [put(1, b"a"), put(2, b"b")])
    with pytest.raises(ViewFailed, match=r"view\.db: UNIQUE constraint failed: documents\.value"), named(store.path):
        store.apply(0, 2, "two", fresh=True)
    assert keys(store) == [] and store.position == ""


def test_a_transaction_of_another_program_is_no_failure_of_the_file(opened: Open) -> None:
    store = opened()
    store.stage(0, [put(1, b"a")])
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ViewLocked, match=r"view\.db: another program holds a transaction"), named(store.path):
            store.apply(0, 1, "one", fresh=True)
        other.execute("COMMIT")
    store.apply(0, 1, "one", fresh=True)
    assert keys(store) == [b"a"]


def test_rows_are_added_up_in_one_moment(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    feeding, verifying = opened(), opened()
    feeding.stage(0, [put(1, b"a")])
    feeding.apply(0, 1, "one", fresh=True)
    states = verifying.states

    def later() -> Any:
        feeding.stage(0, [put(2, b"b")])
        feeding.apply(0, 2, "two", fresh=False)
        return states()

    monkeypatch.setattr(verifying, "states", later)
    assert verifying.rotten(9) == []
    monkeypatch.setattr(verifying, "states", states)
    assert verifying.rotten(9) == [] and verifying.states()[0].seqno == 2


def test_one_process_has_the_right_to_feed_a_view(tmp_path: Path) -> None:
    path = tmp_path / "view.db"
    first = Feeder(path)
    with pytest.raises(ViewRefused, match="another process feeds this view; stop one of them"):
        Feeder(path)
    first.close()
    second = Feeder(path)
    second.close()
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
    with pytest.raises(ViewRefused, match="No such file"):
        Feeder(tmp_path / "none" / "view.db")


def test_a_file_that_is_no_view_of_the_group_is_refused_and_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE mine (a)")
    db.close()
    before = other.read_bytes()
    with pytest.raises(ViewRefused, match="database of something else"):
        ViewStore(other, GROUP)
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"no database" * 1000)
    with pytest.raises(ViewRefused, match="not a database"):
        ViewStore(garbage, GROUP)
    ViewStore(tmp_path / "view.db", GROUP).close()
    with pytest.raises(ViewRefused, match="is a view of 'catalog', not of 'orders'"):
        ViewStore(tmp_path / "view.db", "orders")
    with pytest.raises(ViewRefused, match="unable to open"):
        ViewStore(tmp_path / "none" / "view.db", GROUP)
    assert other.read_bytes()[100:] == before[100:], "the header alone says how a database is journaled"


def test_u73_rows_that_changed_in_the_file_are_found(opened: Open, tmp_path: Path) -> None:
    store = opened()
    store.stage(0, [put(number, b"k%d" % number) for number in range(1, 9)])
    store.apply(0, 8, "one", fresh=True)
    assert store.rotten(10) == []
    with sqlite3.connect(tmp_path / "view.db") as db:
        db.execute("UPDATE documents SET value = x'00' WHERE key = ?", (b"k3",))
    assert store.rotten(10) == [b"k3"]
    with sqlite3.connect(tmp_path / "view.db") as db:
        db.execute("DELETE FROM documents WHERE key = ?", (b"k3",))
    assert store.rotten(10) == [b"shard 0: rows are missing or foreign"]


def test_compare_names_what_differs_and_what_is_too_much(opened: Open) -> None:
    store = opened()
    store.stage(0, [put(1, b"a"), put(2, b"b"), put(3, b"extra")])
    store.apply(0, 3, "one", fresh=True)
    theirs = [Document(b"a", b"v", 1, 0), Document(b"b", b"other", 2, 0), Document(b"missing", b"v", 9, 0)]
    assert store.compare(theirs) == [b"b", b"missing"]
    assert store.unseen(10) == [b"extra"]
    assert store.unseen(10) == [b"a", b"b", b"extra"], "what was seen is forgotten"


@settings(max_examples=60, deadline=None)
@given(st.lists(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from(list(Op)), st.binary(max_size=3)),
             min_size=1, max_size=4, unique_by=lambda each: each[0]),
    max_size=8,
))
def test_u73_the_digest_follows_any_changes(
    tmp_path_factory: pytest.TempPathFactory, snapshots: list[list[tuple[bytes, Op, bytes]]],
) -> None:
    store = ViewStore(tmp_path_factory.mktemp("view") / "view.db", GROUP)
    seqno, all_rows = 0, []
    for number, changes in enumerate(snapshots):
        rows = []
        for key, op, value in changes:
            seqno += 1
            rows.append(put(seqno, key, value) if op is Op.PUT else deleted(seqno, key, op))
        all_rows += rows
        store.stage(0, rows)
        store.apply(0, seqno, f"at {number}", fresh=number == 0, summary=summary_of(all_rows))
    assert store.rotten(10) == []
    store.close()
