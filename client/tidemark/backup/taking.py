"""Take a backup: the documents that a pin shows, shard by shard, into files; the manifest is written last.

A run that ended early goes on where its last complete file ends, as long as its pin lasts.  With an earlier backup of
the group the documents that did not change since come from its files; the digest of the pin proves the result.
Stays out: what a pin is (pins), how files are written (files, folder), which keys changed (changed_keys).
"""

from __future__ import annotations

import asyncio
import datetime
import secrets
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from tidemark_wire.tasks import cancelled
from tidemark_wire.version import VERSION

from ..client import Client
from ..document import Cut, Document
from ..document_scans import behind_key
from ..documents import Documents
from ..errors import InvalidArgument, NotPinned, RequestRefused, TidemarkError, Unavailable
from ..pins import Pin
from ..settings import at_least
from .changed_keys import Changed, NotComparable, changed_keys
from .document_rows import DOCUMENT_ROWS
from .errors import BackupDamaged, BackupMismatch, FolderRefused
from .files import FileWriter, pages
from .folder import Folder
from .in_thread import each, in_thread
from .manifest import DOCUMENTS, FILE_BYTES_MAX, Manifest, ShardRecord, path_of
from .verifying import OnRows, good_files, problems_of_shard, verify

LEASE_S = 1800.0
LEASE_MIN_S = 3.0
FILE_BYTES = 64 << 20
SHARDS_AT_ONCE = 4
GET_KEYS = 100
RENEWALS = 3
"""Renewals of a lease within its time: two may fail."""
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that is complete.

    `kept_files` were written by runs before; `fetched` documents were read from the cluster; `notes` are for people.
    """

    directory: Path
    manifest: Manifest
    kept_files: int
    fetched: int
    notes: tuple[str, ...]


async def take(
    client: Client, group: str, directory: Path | str, *, since: Path | str | None = None, lease_s: float = LEASE_S,
    file_bytes: int = FILE_BYTES, timeout_s: float = 60.0, on_rows: OnRows | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Backup:
    """Write the documents of a group, as they are now, to a new folder, and return what is there.

    Each shard is at one seqno, which a pin keeps.  The pin's lease is renewed while this runs; when it ends early,
    another call with the same folder goes on within `lease_s`, and later begins with a new pin.  Files have about
    `file_bytes`.  `timeout_s` is how long the cluster may be away.

    `since` is the folder of an earlier backup of the group.  Only what changed since is read from the cluster then; the
    new folder is whole and needs the earlier one no more.  Where the changes since cannot be had a note says so, and
    everything is read.  Raises FolderRefused, BackupDamaged (of the earlier one), BackupMismatch, NotPinned, WrongKind,
    UnknownGroup, InvalidArgument, Unavailable, OSError.
    """
    at_least("lease_s", lease_s, LEASE_MIN_S)
    at_least("file_bytes", file_bytes, 1)
    if file_bytes > FILE_BYTES_MAX // 2:
        raise InvalidArgument("file_bytes", f"is {file_bytes}, the limit is {FILE_BYTES_MAX // 2}")
    async with client.documents(group, timeout_s=timeout_s) as documents:
        folder = Folder(Path(directory))
        base = _Base(Path(since), group) if since is not None else None
        if since is not None:
            await in_thread(verify, since)     # before anything is pinned for it
        with folder.locked():
            run = _Run(client, documents, folder, base, lease_s, timeout_s, file_bytes, on_rows, on_note)
            return await run.run()


class _Base:
    """An earlier backup of the group."""

    def __init__(self, directory: Path, group: str) -> None:
        self._folder = Folder(directory)
        self.manifest = self._folder.manifest(DOCUMENTS)
        if self.manifest.group != group:
            raise FolderRefused(
                f"{directory} is a backup of {self.manifest.group!r}, not of {group!r}", reason="OTHER_BACKUP",
                advice="Name a backup of the same group, or leave `since` (`--since`) away.",
            )
        self._shards = {each.shard: each for each in self.manifest.shards}

    def behind(self, shard: int, key: bytes) -> Iterator[list[Document]]:
        """Yield the documents of a shard behind a key, page by page."""
        for file in self._shards[shard].files:
            if file.last_key > key:
                for page in pages(self._folder, DOCUMENT_ROWS, shard, file):
                    yield [each for each in page if each.key > key]


class _Run:
    """One run of a backup."""

    def __init__(
        self, client: Client, documents: Documents, folder: Folder, base: _Base | None, lease_s: float,
        timeout_s: float, file_bytes: int, on_rows: OnRows | None, on_note: Callable[[str], None] | None,
    ) -> None:
        self._client = client
        self._documents = documents
        self._folder = folder
        self._base = base
        self._changed: Changed = {}
        self._fetched = 0
        self._lease_s = lease_s
        self._timeout_s = timeout_s
        self._file_bytes = file_bytes
        self._on_rows = on_rows
        self._on_note = on_note
        self._notes: list[str] = []
        self._spec = _spec_of(client, documents)
        self._saving = asyncio.Lock()
        self._open_rows = 0

    async def run(self) -> Backup:
        before = self._folder.unfinished(DOCUMENTS, self._documents.group_name)
        self._manifest = self._new(before.pin if before is not None else f"backup-{secrets.token_hex(8)}")
        if before is None:
            self._folder.save_unfinished(self._manifest)   # first the name: a run after a crash takes the pin over
        pin = await self._documents.pin(self._manifest.pin, self._lease_s)
        kept = await self._begin(pin, before)
        try:
            await self._while_leased(pin)
        except (BackupMismatch, BackupDamaged):     # another try ends so too
            await self._release(pin)
            raise
        self._folder.finish(self._manifest)
        await self._release(pin)
        return Backup(self._folder.root, self._manifest, kept, self._fetched, tuple(self._notes))

    def _new(self, pin: str) -> Manifest:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return Manifest(self._documents.group_name, DOCUMENTS, now, VERSION, self._spec, pin)

    async def _begin(self, pin: Pin, before: Manifest | None) -> int:
        """Decide what of an earlier run is kept; return how many files."""
        shards = [_record(shard, cut) for shard, cut in sorted(pin.cuts.items())]
        self._manifest.shards = shards
        files = 0
        if before is not None and before.shards:
            if [each.same_cut for each in before.shards] == [each.same_cut for each in shards]:
                self._manifest.created = before.created
                for shard, old in zip(shards, before.shards, strict=True):
                    shard.files = await in_thread(good_files, self._folder, DOCUMENT_ROWS, old)
                    files += len(shard.files)
                dropped = sum(len(each.files) for each in before.shards) - files
                self._note(f"goes on with {files} files of an interrupted run" + (
                    f"; {dropped} are damaged and written again" if dropped else ""))
            else:
                self._note("the pin of the interrupted run has ended: the backup begins again")
        if not files:
            self._folder.clear()
        self._folder.save_unfinished(self._manifest)
        return files

    async def _while_leased(self, pin: Pin) -> None:
        """Copy all shards while the lease is renewed; raises NotPinned when the pin ends meanwhile."""
        copying = asyncio.create_task(self._copy(pin), name="tidemark-backup")
        renewing = asyncio.create_task(self._renew(pin), name="tidemark-backup-lease")
        try:
            await asyncio.wait((copying, renewing), return_when=asyncio.FIRST_COMPLETED)
            await (renewing if renewing.done() and not copying.done() else copying)
        finally:
            await cancelled(copying, renewing)

    async def _renew(self, pin: Pin) -> None:
        pause_s = self._lease_s / RENEWALS
        while True:
            await asyncio.sleep(pause_s)
            try:
                await pin.renew(self._lease_s)
                pause_s = self._lease_s / RENEWALS
            except NotPinned:
                raise
            except (Unavailable, RequestRefused):   # the scans say when it is over
                pause_s = RETRY_S

    async def _copy(self, pin: Pin) -> None:
        await self._compare()
        await each(self._manifest.shards, lambda shard: self._copy_shard(pin, shard), SHARDS_AT_ONCE)

    async def _compare(self) -> None:
        """Find out what changed since the earlier backup; without it, and where that is unknown, read everything."""
        if self._base is None:
            return
        try:
            self._changed = await changed_keys(
                self._client, self._base.manifest, self._manifest.shards, self._timeout_s)
        except NotComparable as why:
            self._note(f"everything is read, for the earlier backup does not help: {why}")
            self._base = None

    async def _pages(self, pin: Pin, shard: int, behind: bytes) -> AsyncGenerator[list[Document], None]:
        """Yield the documents that the pin shows behind a key, in the order of their keys."""
        if self._base is not None:
            async for page in self._merged(self._base, pin, shard, behind):
                yield page
        elif (first := behind_key(behind)) or not behind:
            async with pin.scan(shards=[shard], first=first if behind else None) as scan:
                async for page in scan.pages():
                    self._fetched += len(page)
                    yield page

    async def _merged(self, base: _Base, pin: Pin, shard: int, behind: bytes) -> AsyncGenerator[list[Document], None]:
        """Yield the same from an earlier backup: what did not change since, and the rest read at the pin."""
        changed = self._changed[shard]
        left = sorted((key for key in changed if key > behind), reverse=True)
        kept_pages = base.behind(shard, behind)
        while page := await in_thread(_next_of, kept_pages):
            while left and left[-1] <= page[-1].key:
                upto = left[-GET_KEYS:][0]   # in reverse order: the last of the keys that are read now
                upto = min(upto, page[-1].key)
                fetched = await self._fetch(pin, left, upto)
                cut = bisect_right(page, upto, key=_key)
                yield sorted([*(each for each in page[:cut] if each.key not in changed), *fetched], key=_key)
                page = page[cut:]
                if not page:
                    break
            if page:
                yield page   # no changed key is left up to its end
        while left:
            yield await self._fetch(pin, left, left[-GET_KEYS:][0])

    async def _fetch(self, pin: Pin, left: list[bytes], upto: bytes) -> list[Document]:
        """Take the keys up to one off `left`, which is in reverse order; return their documents at the pin by key."""
        taken = []
        while left and left[-1] <= upto:
            taken.append(left.pop())
        found = await pin.get_many(taken)
        self._fetched += len(found)
        return [found[key] for key in taken if key in found]

    async def _copy_shard(self, pin: Pin, shard: ShardRecord) -> None:
        writer: FileWriter[Document] | None = None
        try:
            behind = shard.files[-1].last_key if shard.files else b""
            async with aclosing(self._pages(pin, shard.shard, behind)) as found:
                async for page in found:
                    if not page:
                        continue
                    if writer is None:
                        writer = FileWriter(
                            self._folder, path_of(DOCUMENTS, shard.shard, len(shard.files)), DOCUMENT_ROWS)
                    await in_thread(writer.write, page)
                    self._progress(len(page))
                    if writer.size >= self._file_bytes:
                        await self._finish(shard, writer)
                        writer = None
            if writer is not None:
                await self._finish(shard, writer)
                writer = None
        finally:
            if writer is not None:
                writer.abort()
        problems = problems_of_shard(shard)
        if problems:
            raise BackupMismatch("; ".join(problems), shard=shard.shard)

    async def _finish(self, shard: ShardRecord, writer: FileWriter[Document]) -> None:
        record = await in_thread(writer.finish)
        async with self._saving:
            shard.files.append(record)
            self._open_rows -= record.rows
            await in_thread(self._folder.save_unfinished, self._manifest)

    async def _release(self, pin: Pin) -> None:
        try:
            await pin.release()
        except TidemarkError as error:
            self._note(f"the pin {pin.name} could not be released and ends with its lease: {error.message}")

    def _progress(self, rows: int) -> None:
        self._open_rows += rows
        if self._on_rows is not None:
            done = sum(each.rows for each in self._manifest.shards) + self._open_rows
            self._on_rows(done, self._manifest.count)

    def _note(self, text: str) -> None:
        self._notes.append(text)
        if self._on_note is not None:
            self._on_note(text)


_key = attrgetter("key")


def _next_of(kept_pages: Iterator[list[Document]]) -> list[Document]:
    """Return the next page that is not empty; an empty one at the end."""
    return next((page for page in kept_pages if page), [])


def _record(shard: int, cut: Cut) -> ShardRecord:
    return ShardRecord(shard, cut.seqno, cut.epoch, cut.lineage, cut.count, int.from_bytes(cut.digest, "big"))


def _spec_of(client: Client, documents: Documents) -> dict[str, Any]:
    """Return what a reader of the manifest should know of the group."""
    group = client.routing.find(documents.group_name)
    if group is None:
        return {}
    return {
        "shards": len(group.shards), "defaultDurability": group.default_durability.name,
        "quorumTimeoutSeconds": group.quorum_timeout_s, "recordBytesMax": group.record_bytes_max,
    }
