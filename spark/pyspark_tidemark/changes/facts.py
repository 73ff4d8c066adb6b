"""Facts of a group of documents, asked of its leaders: where its shards stand, and pins of what they hold.

A stream asks again and again, so one client stays connected until `close`.
Stays out: what follows from the facts (position, stream).
"""

from __future__ import annotations

import datetime
import logging
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..connecting import Cluster, shards_of
from ..options import EARLIEST, LATEST, InvalidOption, Options
from ..schema import Mode
from .position import BEGINNING, Place, Position

if TYPE_CHECKING:
    from tidemark import ShardDocuments
    from tidemark.sync import SyncClient, SyncDocuments

log = logging.getLogger("pyspark_tidemark")

RELEASE_S = 1.0
"""Seconds until a shard that does not answer keeps a pin: a query must not wait for it."""

AT_ONCE = 16
"""Shards that are asked about at the same time, where one that does not answer must not hold up the others."""


class ChangeFacts:
    """Asks about one group; connects when it is asked first.  Every call raises InvalidOption, TidemarkError."""

    def __init__(self, cluster: Cluster, options: Options) -> None:
        self._cluster = cluster
        self._options = options
        self._group = options.group
        self._client: SyncClient | None = None
        self._documents: SyncDocuments | None = None
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> ChangeFacts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; a later question connects again."""
        threads, self._threads = self._threads, None
        client, self._client, self._documents = self._client, None, None
        if threads is not None:
            threads.shutdown(cancel_futures=True)
        if client is not None:
            client.close()

    def start(self, from_: str | int) -> Position:
        """Return where a query begins: earliest, latest, a position of a scan or a pin, or milliseconds since 1970.

        Raises InvalidOption for another word, and for a position of another group.
        """
        from tidemark.errors import InvalidArgument

        client = self._connected()
        shards = shards_of(client, self._group, Mode.CHANGES)
        begin: str | datetime.datetime
        if isinstance(from_, int):
            begin = datetime.datetime.fromtimestamp(from_ / 1000, datetime.UTC)
        elif (word := from_.strip().lower()) == EARLIEST:
            return Position(self._group, dict.fromkeys(shards, BEGINNING))
        else:
            begin = "now" if word == LATEST else from_.strip()
        try:
            with client.changes(self._group, from_=begin) as changes:
                changes.open()
                cuts = changes.cuts
        except InvalidArgument as error:
            if error.field != "from_":
                raise
            raise InvalidOption(
                "startingOffsets", "must be earliest, latest, or a position such as a pin of this group has: "
                f"{error.message.removeprefix('from_: ')}") from None
        return Position(self._group, {
            shard: Place(cut.seqno, cut.epoch, cut.lineage.hex()) if cut.seqno else BEGINNING
            for shard, cut in sorted(cuts.items())})

    def pinned(self) -> Position:
        """Pin the documents and return the position there: it covers all that was confirmed before the call (P19)."""
        name = f"spark-{uuid.uuid4().hex}"
        documents = self._of_documents()
        try:
            cuts = documents.pin(name, self._options.pin_lease_s).cuts
        except BaseException:
            self.release([name])
            raise
        return Position(self._group, {
            shard: Place(cut.seqno, cut.epoch, cut.lineage.hex(), cut.seqno, _digest(cut.count, cut.digest))
            for shard, cut in sorted(cuts.items())}, name)

    def applied(self, shards: Sequence[int]) -> dict[int, Place]:
        """Return how far leaders have applied, without a pin; a shard that does not answer is left out."""
        from tidemark.errors import Unavailable

        documents = self._of_documents()

        def ask(shard: int) -> ShardDocuments | None:
            try:
                return documents.describe(shards=[shard])[shard]
            except Unavailable as error:
                log.warning("shard %d of group %r does not say where it stands: %s", shard, self._group, error)
                return None

        if self._threads is None:
            self._threads = ThreadPoolExecutor(AT_ONCE, "tidemark-facts")
        found = {}
        for answer in self._threads.map(ask, shards):
            if answer is not None and answer.failover_log:
                lineage = answer.failover_log[0].lineage.hex()
                digest = _digest(answer.count, answer.digest)
                found[answer.shard] = Place(answer.applied, answer.epoch, lineage, 0, digest)
        return found

    def shards(self) -> list[int]:
        """Return the group's shards now."""
        return shards_of(self._connected(), self._group, Mode.CHANGES)

    def digests(self) -> dict[int, str]:
        """Return number and digest of the documents of each shard, as leaders have applied them."""
        return {shard: _digest(each.count, each.digest) for shard, each in self._of_documents().describe().items()}

    def renew(self, position: Position) -> None:
        """Renew the lease of a position's pin."""
        self._of_documents().pin_at(position.pin, position.pinned()).renew(self._options.pin_lease_s)

    def release(self, names: Sequence[str], shards: Sequence[int] | None = None) -> None:
        """End pins on all or some shards, those that answer at once; elsewhere they end by their lease."""
        from tidemark.errors import TidemarkError

        with self._connected().documents(self._group, timeout_s=RELEASE_S) as documents:
            for name in names:
                try:
                    documents.unpin(name, shards=shards)
                except TidemarkError as error:
                    log.info("pin %s ends by its lease: %s", name, error)

    def _connected(self) -> SyncClient:
        if self._client is None:
            self._client = self._cluster.connect()
        return self._client

    def _of_documents(self) -> SyncDocuments:
        if self._documents is None:
            self.shards()   # says in words what a group of another kind is
            self._documents = self._connected().documents(self._group, timeout_s=self._options.barrier_timeout_s)
        return self._documents


def _digest(count: int, digest: bytes) -> str:
    return f"{count}:{digest.hex()}"


def changed(position: Position, digests: Mapping[int, str]) -> bool:
    """Say whether documents changed behind a position; a shard that is new has."""
    return any(
        (place := position.shards.get(shard)) is None or place.digest != digest for shard, digest in digests.items())
