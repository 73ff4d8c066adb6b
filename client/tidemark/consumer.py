"""Consumer: the position of a named consumer, kept by the cluster as that of a subscription.

It is committed behind the sink only, and protects deletes from a purge while its lease runs (U52).  A commit is an
entry of the log itself and moves every consumer: a position that moved without rows is committed when it has moved far,
when a tenth of the lease is over, and at the end (U60).
Stays out: what the position means (`changes`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from tidemark_core.subscriptions.fold import NAMES_MAX
from tidemark_core.upr.history import Point
from tidemark_wire.tasks import cancelled

from .change_settings import ChangeSettings
from .errors import TidemarkError, Unavailable
from .questions import Questions
from .subscription import CLOSE_TIMEOUT_S, RENEWALS

log = logging.getLogger("tidemark.changes")


STRIDE = 2 * NAMES_MAX
"""Seqnos without rows behind which a position is committed: what the filter leaves out, and control entries.

A commit is such an entry too.  Twice as many as a shard has consumers at most, so that their commits die out.
"""


class Consumer:
    """Positions by shard; offsets of the subscription are one above the seqno."""

    def __init__(self, questions: Questions, group: str, group_id: int, settings: ChangeSettings) -> None:
        assert settings.consumer is not None
        self.name = settings.consumer
        self.committed: dict[int, int] = {}
        self._questions = questions
        self._group = group
        self._group_id = group_id
        self._settings = settings
        self._seqnos: dict[int, int] = {}
        self._dirty: set[int] = set()             # shards with rows that no commit covers
        self._committed_at: dict[int, float] = {}
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def positions(self, shards: Sequence[int]) -> dict[int, Point]:
        """Return where the consumer stands on each shard; none where it is new."""
        timeout_s, found = self._settings.timeout_s, {}
        views = await asyncio.gather(
            *(self._questions.subscriptions(self._group, shard, timeout_s=timeout_s, group_id=self._group_id)
              for shard in shards))
        for shard, view in zip(shards, views, strict=True):
            known = next((each for each in view.subscriptions if each.name == self.name), None)
            if known is None or known.offset < 1:
                continue
            # The position lies in the log that it is a position of, so the log's own history names its epoch.
            _, failover = await self._questions.read_index(self._group, shard, timeout_s=timeout_s)
            found[shard] = failover.point(known.offset - 1)
            self.committed[shard] = known.offset - 1
        return found

    def moved(self, shard: int, seqno: int, *, rows: bool) -> None:
        """The sink has stored the position; `rows` says that it stored changes with it."""
        self._seqnos[shard] = seqno
        if rows:
            self._dirty.add(shard)

    def start(self, failed: Callable[[BaseException], None]) -> None:
        if self._settings.commit_s is not None and self._task is None:
            self._task = asyncio.create_task(self._run(self._settings.commit_s, failed), name="tidemark-consumer")

    async def _run(self, every_s: float, failed: Callable[[BaseException], None]) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.commit(timeout_s=self._settings.timeout_s)
            except Unavailable as error:
                log.warning("consumer %s: not committed yet: %s", self.name, error)
            except TidemarkError as error:
                failed(error)
                return

    async def commit(self, *, timeout_s: float, stride: int | None = None) -> None:
        """Commit the positions that moved by rows or by `stride` (STRIDE), and those whose lease is to be renewed.

        Raises TidemarkError.
        """
        async with self._lock:
            now, renew_s = asyncio.get_running_loop().time(), self._settings.lease_ms / 1000 / RENEWALS
            due = [
                shard for shard, seqno in self._seqnos.items()
                if shard in self._dirty or seqno - self.committed.get(shard, 0) >= (stride or STRIDE)
                or now - self._committed_at.get(shard, -renew_s) >= renew_s
            ]
            tried = await asyncio.gather(*(self._commit(shard, timeout_s) for shard in due), return_exceptions=True)
        for error in tried:
            if isinstance(error, BaseException):
                raise error

    async def _commit(self, shard: int, timeout_s: float) -> None:
        seqno, asked_at = self._seqnos[shard], asyncio.get_running_loop().time()
        self._dirty.discard(shard)
        try:
            answer = await self._questions.commit_position(
                self._group, shard, self.name, seqno + 1, lease_ms=self._settings.lease_ms, seek=False,
                timeout_s=timeout_s, group_id=self._group_id,
            )
        except BaseException:
            self._dirty.add(shard)
            raise
        self.committed[shard] = answer.offset - 1
        self._committed_at[shard] = asked_at

    async def close(self) -> None:
        """Commit once more what the sink has stored."""
        await cancelled(*(() if self._task is None else (self._task,)))
        if self._settings.commit_s is None:
            return
        try:
            # One seqno is the entry of the last commit itself.
            await self.commit(timeout_s=min(CLOSE_TIMEOUT_S, self._settings.timeout_s), stride=2)
        except TidemarkError as error:
            log.warning("consumer %s: the last commit failed: %s", self.name, error)
