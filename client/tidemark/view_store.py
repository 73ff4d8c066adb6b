"""View store: the documents of a group in one SQLite file, with the position up to which they are applied.

Rows of a snapshot are staged in a temporary table, which ends with the connection.  One transaction applies them with
the position, the number of documents and the digest, so a crash at any moment leaves the rows of the stored position
(rules U55, U58, U73).  Stays out: streams (view).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tidemark_core.documents.rows import hash_of
from tidemark_core.upr.messages import Op, Row, Summary

from .document import Document
from .errors import InvalidArgument, ViewDiverged, ViewRefused

FORMAT = "1"
APPLICATION_ID = 0x54444D56   # TDMV
OPEN_S, BUSY_S = 10.0, 0.5
"""Seconds for which opening the file, and each try of a change, waits for other programs' transactions."""
_BITS = (1 << 128) - 1

_SCHEMA = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE shards ("
    "shard INTEGER PRIMARY KEY, seqno INTEGER NOT NULL, documents INTEGER NOT NULL, digest BLOB NOT NULL)",
    "CREATE TABLE documents ("
    "key BLOB PRIMARY KEY, value BLOB NOT NULL, shard INTEGER NOT NULL, seqno INTEGER NOT NULL, "
    "expires_at_ms INTEGER NOT NULL, hash BLOB NOT NULL)",
    "CREATE INDEX documents_of_shard ON documents (shard)",
)
_COLUMNS = "SELECT key, value, seqno, shard, expires_at_ms FROM documents"
_GET = f"{_COLUMNS} WHERE key = ?"
_SCAN_FROM = f"{_COLUMNS} WHERE key >= ? ORDER BY key LIMIT ?"
_SCAN = f"{_COLUMNS} WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
_STAGED = """
CREATE TEMP TABLE staged (
    shard INTEGER NOT NULL, key BLOB NOT NULL, deleted INTEGER NOT NULL, seqno INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL, value BLOB NOT NULL, hash BLOB NOT NULL, PRIMARY KEY (shard, key)
) WITHOUT ROWID;
CREATE TEMP TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID;
"""


class ShardState(NamedTuple):
    """A shard as the view has it: the seqno applied, the number of documents, their digest (16 bytes)."""

    seqno: int
    documents: int
    digest: bytes


EMPTY = ShardState(0, 0, bytes(16))


class ViewStore:
    """One SQLite file.  Every method blocks; calls come from one thread."""

    def __init__(self, path: Path | str, group: str) -> None:
        """Open the file, or create it.  Raises ViewRefused when it is no view of `group`."""
        self.path = Path(path)
        try:
            self._db = sqlite3.connect(self.path, timeout=OPEN_S, isolation_level=None)
            self.position = self._open(group)
            self._db.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
        except sqlite3.Error as error:
            raise ViewRefused(f"{self.path}: {error}") from None

    def _open(self, group: str) -> str:
        db = self._db
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")   # a power loss takes rows and position back together
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        (application,) = db.execute("PRAGMA application_id").fetchone()
        if application not in (0, APPLICATION_ID) or (application == 0 and tables):
            raise ViewRefused(f"{self.path} is a database of something else; name another file")
        if not tables:
            self._create(group)
        found = dict(db.execute("SELECT name, value FROM facts"))
        if found.get("format") != FORMAT:
            raise ViewRefused(f"{self.path} has the format {found.get('format')}, this release reads {FORMAT}")
        if found.get("group") != group:
            raise ViewRefused(f"{self.path} is a view of {found.get('group')!r}, not of {group!r}")
        db.executescript(_STAGED)
        return str(found.get("position", ""))

    def _create(self, group: str) -> None:
        """Make the tables and their facts in one transaction: `executescript` would commit in between."""
        with self._db as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            for statement in _SCHEMA:
                db.execute(statement)
            facts = (("format", FORMAT), ("group", group), ("position", ""))
            db.executemany("INSERT INTO facts VALUES (?, ?)", facts)

    def close(self) -> None:
        self._db.close()

    # --- applying -----------------------------------------------------------------------------------------

    def stage(self, shard: int, rows: Iterable[Row]) -> None:
        """Add rows of the snapshot under way; none of them is shown yet."""
        self._db.execute("BEGIN")
        try:
            self._stage(shard, rows)
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _stage(self, shard: int, rows: Iterable[Row]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                (shard, row.key, 0, row.seqno, row.expires_at_ms, row.value,
                 hash_of(row.key, row.seqno, row.expires_at_ms, row.value))
                if row.op is Op.PUT else (shard, row.key, 1, row.seqno, 0, b"", b"")
                for row in rows
            ),
        )

    def discard(self, shard: int) -> None:
        """Empty the staging area of a shard."""
        self._db.execute("DELETE FROM staged WHERE shard = ?", (shard,))

    def apply(
        self, shard: int, seqno: int, position: str, *, fresh: bool, summary: Summary | None = None
    ) -> ShardState:
        """Apply what is staged, store the position, and return the shard as it is now; all in one transaction.

        `fresh`: what is staged replaces everything that the view has of the shard.  Raises ViewDiverged where
        `summary` says something else, and ViewRefused where another process has moved the view; then nothing changed.
        """
        before = self.states().get(shard, EMPTY)
        self._begin()
        try:
            if fresh:
                self._db.execute("DELETE FROM documents WHERE shard = ?", (shard,))
            state = self._merge(shard, seqno, EMPTY if fresh else before)
            if summary is not None and (state.documents, state.digest) != (summary.documents, summary.digest):
                found = f"{state.documents} documents with digest {state.digest.hex()}, the shard " \
                        f"{summary.documents} with {summary.digest.hex()}"
                raise ViewDiverged(shard, seqno, before.seqno, found)
            self._store(shard, state, position)
            self._db.execute("DELETE FROM staged WHERE shard = ?", (shard,))
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self.position = position
        return state

    def advance(self, shard: int, seqno: int, position: str) -> None:
        """Nothing changed up to `seqno`: store the position."""
        state = self.states().get(shard, EMPTY)
        self._begin()
        try:
            self._store(shard, state._replace(seqno=seqno), position)
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self.position = position

    def _roll_back(self) -> None:
        if self._db.in_transaction:     # a full disk ends one by itself
            self._db.execute("ROLLBACK")

    def _begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        (stored,) = self._db.execute("SELECT value FROM facts WHERE name = 'position'").fetchone()
        if stored != self.position:
            self._roll_back()
            raise ViewRefused(f"{self.path}: another process feeds this view; stop one of them")

    def _store(self, shard: int, state: ShardState, position: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?)", (shard, *state))
        self._db.execute("UPDATE facts SET value = ? WHERE name = 'position'", (position,))

    def _merge(self, shard: int, seqno: int, before: ShardState) -> ShardState:
        """Move staged rows into the view, each only over an older version, and account for them."""
        execute = self._db.execute
        total, count = int.from_bytes(before.digest, "big"), before.documents
        for (old,) in execute(
            "SELECT d.hash FROM staged s JOIN documents d ON d.key = s.key WHERE s.shard = ? AND d.seqno < s.seqno",
            (shard,),
        ):
            total -= int.from_bytes(old, "big")
            count -= 1
        for (new,) in execute(
            "SELECT s.hash FROM staged s LEFT JOIN documents d ON d.key = s.key "
            "WHERE s.shard = ? AND NOT s.deleted AND (d.key IS NULL OR d.seqno < s.seqno)",
            (shard,),
        ):
            total += int.from_bytes(new, "big")
            count += 1
        execute(
            "DELETE FROM documents WHERE rowid IN (SELECT d.rowid FROM staged s JOIN documents d ON d.key = s.key "
            "WHERE s.shard = ? AND s.deleted AND d.seqno < s.seqno)", (shard,),
        )
        execute(
            "INSERT INTO documents (key, value, shard, seqno, expires_at_ms, hash) "
            "SELECT key, value, shard, seqno, expires_at_ms, hash FROM staged WHERE shard = ? AND NOT deleted "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value, shard = excluded.shard, seqno = excluded.seqno, "
            "expires_at_ms = excluded.expires_at_ms, hash = excluded.hash WHERE excluded.seqno > documents.seqno",
            (shard,),
        )
        return ShardState(seqno, count, (total & _BITS).to_bytes(16, "big"))

    # --- reading ------------------------------------------------------------------------------------------

    def states(self) -> dict[int, ShardState]:
        """Return every shard as the view has it."""
        rows = self._db.execute("SELECT shard, seqno, documents, digest FROM shards ORDER BY shard")
        return {shard: ShardState(*state) for shard, *state in rows}

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Document]:
        """Return the documents that exist, by key."""
        rows = (self._db.execute(_GET, (key,)).fetchone() for key in keys)
        return {row[0]: Document(*row) for row in rows if row is not None}

    def scan(self, first: bytes = b"", until: bytes | None = None, limit: int = -1) -> list[Document]:
        """Return documents with keys in [first, until) by key, at most `limit` of them, -1: all."""
        if limit < -1:
            raise InvalidArgument("limit", f"is {limit}, must be at least 0")
        rows = (
            self._db.execute(_SCAN_FROM, (first, limit)) if until is None
            else self._db.execute(_SCAN, (first, until, limit))
        )
        return [Document(*row) for row in rows]

    # --- verifying ----------------------------------------------------------------------------------------

    def rotten(self, most: int) -> list[bytes]:
        """Return keys, at most `most`, of rows that are not the ones that were applied; reads every row."""
        self._db.execute("BEGIN")   # rows and states of one moment, while another process feeds it
        try:
            return self._rotten(most)
        finally:
            self._roll_back()

    def _rotten(self, most: int) -> list[bytes]:
        found: list[bytes] = []
        sums: dict[int, int] = {}
        counts: dict[int, int] = {}
        rows = self._db.execute("SELECT key, value, shard, seqno, expires_at_ms, hash FROM documents")
        for key, value, shard, seqno, expires_at_ms, hashed in rows:
            if hash_of(key, seqno, expires_at_ms, value) != hashed and len(found) < most:
                found.append(key)
            sums[shard] = sums.get(shard, 0) + int.from_bytes(hashed, "big")
            counts[shard] = counts.get(shard, 0) + 1
        for shard, state in self.states().items():
            digest = (sums.get(shard, 0) & _BITS).to_bytes(16, "big")
            if (counts.get(shard, 0), digest) != (state.documents, state.digest) and len(found) < most:
                found.append(f"shard {shard}: rows are missing or foreign".encode())
        return found

    def begin_to_compare(self) -> None:
        """Forget what a comparison that did not come to its end has seen."""
        self._db.execute("DELETE FROM seen")

    def compare(self, documents: Sequence[Document]) -> list[bytes]:
        """Return the keys of those that the view does not have as they are, and remember all as seen."""
        mine = self.get_many([document.key for document in documents])
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR IGNORE INTO seen VALUES (?)", ((document.key,) for document in documents))
        self._db.execute("COMMIT")
        return [document.key for document in documents if mine.get(document.key) != document]

    def unseen(self, most: int) -> list[bytes]:
        """Return keys of the view, at most `most`, that `compare` was not given, and forget what was seen."""
        rows = self._db.execute(
            "SELECT key FROM documents WHERE key NOT IN (SELECT key FROM seen) LIMIT ?", (most,)).fetchall()
        self._db.execute("DELETE FROM seen")
        return [key for (key,) in rows]
