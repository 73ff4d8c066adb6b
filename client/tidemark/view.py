"""View: a SQLite file that follows the documents of a group, each change applied exactly once.

    async with client.view("catalog", "catalog.db") as view:
        await view.catch_up()
        document = await view.get(b"bash")

A task follows the changes from the position in the file.  `catch_up` waits until the view has everything that was
confirmed before the call; `verify` compares view and store document by document.
Stays out: tables and transactions (view_store), streams (changes).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidemark_wire.tasks import cancelled

from .change_events import Advanced, BatchEvent, ChangeBatch, Discarded, Rebuilding, SnapshotEnd
from .document import Document
from .errors import Closed, Unavailable, ViewLocked
from .view_file import BeingFed, Feeder, named
from .view_store import EMPTY, ShardState, ViewStore

if TYPE_CHECKING:
    from .changes import Changes
    from .client import Client
    from .documents import Documents

CATCH_UP_S = 60.0
COMPARED_AT_ONCE = 1000
ROUNDS_MAX = 20
"""Looks at keys that are written while they are compared."""
NAMED_MAX = 100
"""Keys that a verification names."""
LOCKED_RETRY_S, LOCKED_TOLD_S = 0.2, 60.0
FED_LOOK_S = 0.1
DIGEST_ROUNDS = 50
DIGEST_PAUSE_S = 0.1

T = TypeVar("T")

log = logging.getLogger("tidemark.view")


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `SqliteView.verify`.

    `mismatches` has keys that differ between view and store, `rotten` keys of rows that changed since they were
    applied, each at most 100.  `digest` is "equal", "different", or "moving" when writes did not stop long enough.
    """

    documents: int
    mismatches: tuple[bytes, ...]
    rotten: tuple[bytes, ...]
    digest: str

    @property
    def good(self) -> bool:
        """Say whether nothing wrong was found."""
        return not self.mismatches and not self.rotten and self.digest != "different"


class SqliteView:
    """A materialised view of one group.  Made by `Client.view`; use it with `async with`."""

    def __init__(
        self, client: Client, group: str, path: Path | str, changes_from: Callable[[str], Changes],
        on_event: Callable[[BatchEvent], None] | None = None, beside: bool = False,
    ) -> None:
        self.group_name = group
        self.path = Path(path)
        self.received = 0
        """Rows received since the view was opened."""
        self.rebuilds = 0
        self._client = client
        self._changes_from = changes_from
        self._on_event = on_event
        self._beside = beside
        self._feeder: Feeder | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidemark-view")
        self._store: ViewStore | None = None
        self._changes: Changes | None = None
        self._task: asyncio.Task[None] | None = None

    # --- life ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the file and begin to follow; raises ViewRefused, ViewFailed."""
        self._client.home.check()
        try:
            self._feeder = Feeder(self.path)
        except BeingFed:
            if not self._beside:
                raise
        self._store = await self._in_thread(lambda: ViewStore(self.path, self.group_name))
        if self._feeder is None:
            return
        self._changes = self._changes_from(self._store.position)
        self._task = asyncio.create_task(self._follow(self._changes, self._store), name="tidemark-view")

    async def close(self) -> None:
        """Stop following; the file has whole snapshots up to its position."""
        self._client.home.check()
        if self._task is not None:
            await cancelled(self._task)
        if self._changes is not None:
            await self._changes.close()
        if self._store is not None:
            store, self._store = self._store, None
            await self._in_thread(store.close)
        feeder, self._feeder = self._feeder, None
        if feeder is not None:
            feeder.close()
        self._thread.shutdown()

    async def __aenter__(self) -> SqliteView:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def wait_closed(self) -> None:
        """Follow until the stream fails; raises its error."""
        self._client.home.check()
        assert self._task is not None, "open the view first, and feed it"
        await asyncio.shield(self._task)

    # --- following ----------------------------------------------------------------------------------------

    async def _follow(self, changes: Changes, store: ViewStore) -> None:
        async for event in changes.batches():
            await self._on(changes, store, event)
            if self._on_event is not None:
                self._on_event(event)

    async def _on(self, changes: Changes, store: ViewStore, event: BatchEvent) -> None:
        shard = event.shard
        match event:
            case ChangeBatch():
                await self._applied(lambda: store.stage(shard, event.rows))
                self.received += len(event.rows)
            case Discarded():
                await self._applied(lambda: store.discard(shard))
            case SnapshotEnd():
                position = changes.next_position
                await self._applied(
                    lambda: store.apply(shard, event.seqno, position, fresh=event.fresh, summary=event.summary))
            case Advanced():
                position = changes.next_position
                await self._applied(lambda: store.advance(shard, event.seqno, position))
            case Rebuilding():
                self.rebuilds += 1

    async def _applied(self, work: Callable[[], object]) -> None:
        """Change the file, waiting for other programs' transactions: they may index it or import for minutes."""
        told_at = asyncio.get_running_loop().time()
        while True:
            try:
                await self._in_thread(work)
                return
            except ViewLocked as locked:
                if (now := asyncio.get_running_loop().time()) >= told_at:
                    log.warning("the view waits: %s", locked.message)
                    told_at = now + LOCKED_TOLD_S
                await asyncio.sleep(LOCKED_RETRY_S)

    async def catch_up(self, timeout_s: float = CATCH_UP_S) -> None:
        """Wait until the view has everything that was confirmed before the call.

        Raises Unavailable after `timeout_s`, naming the shards that are not covered, and the error of a stream that
        failed.
        """
        self._client.home.check()
        if self._store is not None and self._feeder is None:
            await self._fed_up_to((await self._client.barrier(self.group_name, timeout_s=timeout_s)).seqnos, timeout_s)
            return
        changes, task = self._changes, self._task
        if changes is None or task is None or self._store is None:
            raise Closed("the view is closed")
        barrier = asyncio.create_task(changes.barrier(timeout_s))
        try:
            await asyncio.wait((barrier, task), return_when=asyncio.FIRST_COMPLETED)
            if not barrier.done():
                task.result()
                raise Closed("the view is closed")
            result = barrier.result()
        finally:
            await cancelled(barrier)
        if not result.complete:
            missing = ", ".join(f"shard {shard} {why}" for shard, why in sorted(result.not_covered.items()))
            raise Unavailable(f"the view of {self.group_name} did not catch up within {timeout_s:g} s: {missing}")

    async def _fed_up_to(self, seqnos: Mapping[int, int], timeout_s: float) -> None:
        """Wait until the process that feeds the view has applied so much."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while behind := [
            shard for shard, seqno in seqnos.items() if (await self.states()).get(shard, EMPTY).seqno < seqno
        ]:
            if asyncio.get_running_loop().time() >= deadline:
                raise Unavailable(
                    f"the process that feeds {self.path} did not catch up within {timeout_s:g} s: shards {behind}")
            await asyncio.sleep(FED_LOOK_S)

    # --- reading ------------------------------------------------------------------------------------------

    async def get(self, key: bytes) -> Document | None:
        """Return a document as the view has it, None when it does not."""
        return (await self.get_many([key])).get(key)

    async def get_many(self, keys: list[bytes]) -> dict[bytes, Document]:
        """Return the documents that the view has, by key."""
        store = self._opened()
        return await self._in_thread(lambda: store.get_many(keys))

    async def scan(self, first: bytes = b"", until: bytes | None = None, limit: int = -1) -> list[Document]:
        """Return documents with keys in [first, until) by key, at most `limit` of them, -1: all."""
        store = self._opened()
        return await self._in_thread(lambda: store.scan(first, until, limit))

    async def states(self) -> dict[int, ShardState]:
        """Return by shard the seqno applied, the number of documents and their digest."""
        return await self._in_thread(self._opened().states)

    # --- verifying ----------------------------------------------------------------------------------------

    async def verify(self, timeout_s: float = CATCH_UP_S) -> Verification:
        """Compare view and store document by document, add up every row again, and compare the digests (U73).

        Writes may go on: a key that differs is checked again, and counts when the view is behind a write that was
        confirmed before the view caught up.  The comparison takes a scan of the whole group.
        """
        store = self._opened()
        await self.catch_up(timeout_s)
        rotten = await self._in_thread(lambda: store.rotten(NAMED_MAX))
        await self._in_thread(store.begin_to_compare)
        async with self._client.documents(self.group_name) as documents:
            suspects: list[bytes] = []
            batch: list[Document] = []
            count = 0
            async for document in documents.scan():
                batch.append(document)
                if len(batch) >= COMPARED_AT_ONCE:
                    count += len(batch)
                    suspects += await self._compared(store, batch)
                    batch = []
            count += len(batch)
            suspects += await self._compared(store, batch)
            suspects += await self._in_thread(lambda: store.unseen(NAMED_MAX))
            mismatches = await self._settled(documents, suspects, timeout_s)
            digest = await self._digests(documents)
        return Verification(count, tuple(mismatches), tuple(rotten), digest)

    async def _compared(self, store: ViewStore, documents: list[Document]) -> list[bytes]:
        return await self._in_thread(lambda: store.compare(documents))

    async def _settled(self, documents: Documents, suspects: list[bytes], timeout_s: float) -> list[bytes]:
        """Return the keys that differ for good, at most NAMED_MAX of them."""
        wrong: list[bytes] = []
        for _ in range(ROUNDS_MAX):
            if not suspects or len(wrong) >= NAMED_MAX:
                return wrong
            kept = await documents.get_many(suspects)
            await self.catch_up(timeout_s)
            mine = await self.get_many(suspects)
            again = []
            for key in suspects:
                theirs, ours = kept.get(key), mine.get(key)
                if theirs == ours:
                    continue
                if ours is not None and (theirs is None or ours.seqno > theirs.seqno):
                    again.append(key)   # written since it was asked for, or deleted and not noticed
                elif ours is None:
                    again.append(key)   # deleted since, or lost
                else:
                    wrong.append(key)
            suspects = again
        return [*wrong, *suspects][:NAMED_MAX]

    async def _digests(self, documents: Documents) -> str:
        """Compare the digest of each shard with the leader's at the same cut."""
        for _ in range(DIGEST_ROUNDS):
            described = await documents.describe()
            states = await self.states()
            different = [
                shard for shard, state in described.items()
                if (state.count, state.digest) != states.get(shard, EMPTY)[1:]
            ]
            if not different:
                return "equal"
            if any(described[shard].applied == states[shard].seqno for shard in different if shard in states):
                return "different"
            await asyncio.sleep(DIGEST_PAUSE_S)
        return "moving"

    def _opened(self) -> ViewStore:
        self._client.home.check()
        if self._store is None:
            raise Closed("the view is closed")
        return self._store

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def run() -> T:
            with named(self.path):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)
