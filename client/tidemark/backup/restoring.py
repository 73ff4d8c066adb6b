"""Restore a backup into an empty group of any number of shards, and compare what is there with the files.

Documents keep their time of expiry; seqnos are those of the new log.  Backup and group are walked side by side in the
order of the keys: first to write what is missing, then to prove that every key is there and equal, and no other.
Stays out: reading files (files, verifying), writing batches (document_writes).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path

from ..client import Client
from ..document import Document, Put
from ..documents import Documents
from ..errors import ValueTooLarge
from .document_rows import DOCUMENT_ROWS, content_of
from .errors import GroupNotEmpty, RestoreMismatch
from .files import pages
from .folder import Folder
from .in_thread import in_thread
from .manifest import DOCUMENTS, Manifest, ShardRecord, hex_of
from .rows import MODULUS
from .verifying import OnRows, verify

CHUNK_ROWS = 1000
EXPIRY_LATE_MAX_MS = 600_000
"""By how much a time of expiry may differ: it is set when the write is logged, which waits for the cluster."""
EXPIRY_EARLY_MAX_MS = 5_000
"""By how much the clock of a leader may be ahead of ours."""

Both = tuple[Document | None, Document | None]


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore that is complete and compared.

    `documents` are in the group now; `written` of them by this run.  `expired` documents of the backup were over
    their time.  `content` is the content digest of the group.
    """

    group: str
    manifest: Manifest
    documents: int
    written: int
    expired: int
    content: int


async def restore(
    client: Client, directory: Path | str, group: str, *, resume: bool = False, timeout_s: float = 60.0,
    on_check: OnRows | None = None, on_rows: OnRows | None = None, on_compare: OnRows | None = None,
) -> Restored:
    """Write a backup into an empty group of kind Documents, and compare the group with it, key by key.

    The backup is verified first, and each document is compared with the limit of the group.  With `resume` the group
    may hold documents of this backup, which an interrupted restore wrote; those that are there are compared before
    anything is written.  `timeout_s` is how long the cluster may be away.  Raises FolderRefused, BackupDamaged,
    BackupVersion and ValueTooLarge (nothing was written), GroupNotEmpty, RestoreMismatch, WrongKind, UnknownGroup,
    Unavailable.
    """
    async with client.documents(group, timeout_s=timeout_s) as documents:
        fits = _Fits(group, documents.document_bytes_max)
        Folder(Path(directory)).manifest(DOCUMENTS)
        manifest = await in_thread(verify, directory, on_rows=on_check, on_page=fits.check)
        run = _Run(documents, Folder(Path(directory)), manifest)
        await run.check_empty(resume=resume)
        if resume:
            await run.check_found()
        await run.write(resume=resume, on_rows=on_rows)
        return await run.compare(on_rows=on_compare)


class _Fits:
    """The limit of the group, for the documents of a backup."""

    def __init__(self, group: str, bytes_max: int) -> None:
        self._group = group
        self._bytes_max = bytes_max

    def check(self, page: list[Document]) -> None:
        """Raise ValueTooLarge for the first document of a page that the group does not take."""
        for each in page:
            if (size := len(each.key) + len(each.value)) > self._bytes_max:
                raise ValueTooLarge(
                    "group", f"{self._group!r} takes documents of {self._bytes_max} bytes, key {each.key[:100]!r} of "
                    f"the backup has {size}; nothing was written",
                    advice="Raise spec.maxRecordBytes of the group, or restore into another one.")


class _Run:
    """One run of a restore."""

    def __init__(self, documents: Documents, folder: Folder, manifest: Manifest) -> None:
        self._documents = documents
        self._folder = folder
        self._manifest = manifest
        self._written = 0

    async def check_empty(self, *, resume: bool) -> None:
        described = await self._documents.describe()
        counts = {shard: each.count for shard, each in described.items() if each.count}
        if counts and not resume:
            raise GroupNotEmpty(
                f"group {self._documents.group_name!r} has {sum(counts.values())} documents", counts=counts)

    async def check_found(self) -> None:
        """Check that what is in the group is of this backup, before anything is written; raises RestoreMismatch."""
        async for source, found in self._side_by_side(None, scanned=True):
            if found is not None:
                _check_equal(source, found)

    async def write(self, *, resume: bool, on_rows: OnRows | None) -> None:
        """Write the documents that the group lacks, each only where no document is."""
        async def missing() -> AsyncIterator[Put]:
            async for source, found in self._side_by_side(on_rows, scanned=resume):
                if source is None or found is not None:
                    _check_equal(source, found)   # an interrupted restore wrote it
                    continue
                left_ms = source.expires_at_ms - _now_ms()
                if source.expires_at_ms and left_ms <= 0:
                    continue
                self._written += 1
                ttl_s = left_ms / 1000 if source.expires_at_ms else None
                yield Put(source.key, source.value, expected=0, ttl_s=ttl_s)

        ended = await self._documents.put_many(missing())
        if ended.refused:
            key = ended.refused[0].key
            raise RestoreMismatch(f"another writer put key {key[:100]!r} during the restore", key=key)

    async def compare(self, *, on_rows: OnRows | None) -> Restored:
        """Prove that the group has the documents of the backup and no others; raises RestoreMismatch."""
        expired = count = wanted = content = 0
        async for source, found in self._side_by_side(on_rows, scanned=True):
            if source is not None and found is None and _is_over(source):
                expired += 1
                continue
            _check_equal(source, found)
            assert source is not None and found is not None
            count += 1
            wanted += content_of(source)
            content += content_of(found)
        content %= MODULUS
        if count + expired != self._manifest.count or content != wanted % MODULUS or (
                not expired and content != self._manifest.content):
            raise RestoreMismatch(
                f"the group has {count} documents of content {hex_of(content)}, the backup {self._manifest.count} of "
                f"{hex_of(self._manifest.content)}", key=b"")
        return Restored(self._documents.group_name, self._manifest, count, self._written, expired, content)

    async def _side_by_side(self, on_rows: OnRows | None, *, scanned: bool) -> AsyncIterator[Both]:
        """Yield the documents of the backup and, with `scanned`, of the group by key, those of one key together."""
        done, scan = 0, self._documents.scan(ordered=True)
        found_pages = scan.pages()
        found: list[Document] = []    # in reverse order

        async def fill() -> None:
            nonlocal found
            if not found and scanned:
                found = (await anext(found_pages, []))[::-1]

        try:
            await fill()
            async for source in self._sources():
                while found and found[-1].key < source.key:
                    yield None, found.pop()
                    await fill()
                if found and found[-1].key == source.key:
                    yield source, found.pop()
                    await fill()
                else:
                    yield source, None
                done += 1
                if on_rows is not None and (done % CHUNK_ROWS == 0 or done == self._manifest.count):
                    on_rows(done, self._manifest.count)
            while found:
                yield None, found.pop()
                await fill()
        finally:
            await scan.close()

    async def _sources(self) -> AsyncIterator[Document]:
        merged = heapq.merge(*map(self._of_shard, self._manifest.shards), key=attrgetter("key"))
        while chunk := await in_thread(lambda: list(islice(merged, CHUNK_ROWS))):
            for each in chunk:
                yield each

    def _of_shard(self, shard: ShardRecord) -> Iterator[Document]:
        for file in shard.files:
            for page in pages(self._folder, DOCUMENT_ROWS, shard.shard, file):
                yield from page


def _check_equal(source: Document | None, found: Document | None) -> None:
    """Raise RestoreMismatch unless the group has the document of the backup."""
    if source is None or found is None:
        document = source or found
        assert document is not None
        where = "is missing in the group" if found is None else "is in the group and not in the backup"
        raise RestoreMismatch(f"key {document.key[:100]!r} {where}", key=document.key)
    late_ms = abs(found.expires_at_ms - source.expires_at_ms)
    if found.value != source.value:
        wrong = "another value"
    elif bool(found.expires_at_ms) != bool(source.expires_at_ms) or late_ms > EXPIRY_LATE_MAX_MS:
        wrong = "another time of expiry"
    else:
        return
    raise RestoreMismatch(f"key {source.key[:100]!r} has {wrong} in the group than in the backup", key=source.key)


def _is_over(document: Document) -> bool:
    """Say whether the group may have deleted a document, its time being over."""
    return 0 < document.expires_at_ms <= _now_ms() + EXPIRY_EARLY_MAX_MS


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
