"""A named subscription as one reader uses it: where it was, what the application is done with, what is committed.

At least once: what was handed out counts as done when the application asks for more, so whoever dies in between
reads it again.  Commits of a reader that stands still renew its lease and nothing else.
Stays out: reading (reader), asking leaders (questions).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark_core.subscriptions.fold import LEASE_MS_DEFAULT, LEASE_MS_MAX, LEASE_MS_MIN, wrong_name
from tidemark_wire.tasks import cancelled

from .errors import InvalidArgument, TidemarkError, Unavailable
from .settings import at_least

if TYPE_CHECKING:
    from .reader import Reader

log = logging.getLogger("tidemark.subscription")

DEFAULT_LEASE_S = LEASE_MS_DEFAULT / 1000
AUTO_COMMIT_S = 5.0
RENEWALS = 10             # a lease is renewed when such a part of it is over
CLOSE_TIMEOUT_S = 5.0     # a reader that closes waits no longer for its last commit


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """Name and lease of a subscription; `auto_commit_s` None leaves committing to the application."""

    name: str
    lease_ms: int
    auto_commit_s: float | None

    @classmethod
    def checked(cls, name: Any, lease_s: Any, auto_commit_s: Any) -> SubscriptionSettings:
        """Return settings; raises InvalidArgument."""
        every_s = None if auto_commit_s is None else at_least("auto_commit_s", auto_commit_s, 0.01)
        return cls(checked_name(name), checked_lease_ms(lease_s), every_s)


def checked_name(name: Any) -> str:
    """Return a name that may be one; raises InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument("subscription", f"is {name!r}, must be a text")
    if (wrong := wrong_name(name)) is not None:
        raise InvalidArgument("subscription", wrong.removeprefix("subscription "))
    return name


def checked_lease_ms(lease_s: Any) -> int:
    """Return a lease in milliseconds; raises InvalidArgument."""
    lease_ms = int(at_least("lease_s", lease_s, LEASE_MS_MIN / 1000) * 1000)
    if lease_ms > LEASE_MS_MAX:
        raise InvalidArgument("lease_s", f"is {lease_s!r}, must be a number of at most {LEASE_MS_MAX // 1000}")
    return lease_ms


class Subscription:
    """Progress of one reader under a name, by shard; offsets are the next ones wanted."""

    def __init__(self, reader: Reader, settings: SubscriptionSettings) -> None:
        self.settings = settings
        self.given: dict[int, int] = {}       # handed out up to here
        self.done: dict[int, int] = {}        # the application is done up to here
        self.committed: dict[int, int] = {}
        self._reader = reader
        self._renewed_at: dict[int, float] = {}
        self._shared: set[int] = set()        # shards on which another reader of the name was noticed
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start_of(self, shard: int) -> int | None:
        """Return where the subscription stands on a shard, None when it is new there."""
        reader, name = self._reader, self.settings.name
        view = await reader.questions.subscriptions(
            reader.group_name, shard, timeout_s=reader.settings.timeout_s, group_id=reader.group_id)
        found = next((each for each in view.subscriptions if each.name == name), None)
        if found is None:
            return None
        self.committed[shard] = self.done[shard] = found.offset
        self._renewed_at[shard] = reader.loop.time() - max(0, found.lease_ms - found.expires_in_ms) / 1000
        return found.offset

    # --- what the application has taken

    def settle(self) -> None:
        """The application asks for more: it is done with all it was given."""
        for shard, offset in self.given.items():
            self.mark(shard, offset)

    def mark(self, shard: int, offset: int) -> None:
        """The application is done with what lies below `offset` of a shard."""
        if offset > self.done.get(shard, -1):
            self.done[shard] = offset

    # --- committing

    def start(self) -> None:
        """Begin to commit by itself, when that is asked for."""
        if self.settings.auto_commit_s is not None and self._task is None:
            self._task = asyncio.create_task(self._run(self.settings.auto_commit_s), name="tidemark-commit")

    async def _run(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.commit(self.done, timeout_s=self._reader.settings.timeout_s)
            except Unavailable as error:
                log.warning("subscription %s: not committed yet: %s", self.settings.name, error)
            except TidemarkError as error:
                self._reader.fail(error)  # it would go on for ever without being remembered
                return

    async def commit(self, positions: Mapping[int, int], *, timeout_s: float) -> None:
        """Commit these positions where they are news, and renew what is to be renewed; raises TidemarkError."""
        async with self._lock:
            now, renew_s = self._reader.loop.time(), self.settings.lease_ms / 1000 / RENEWALS
            due = {
                shard: offset
                for shard, offset in positions.items()
                if offset > self.committed.get(shard, -1) or now - self._renewed_at.get(shard, now) >= renew_s
            }
            tried = await asyncio.gather(
                *(self._commit(shard, offset, timeout_s) for shard, offset in due.items()), return_exceptions=True
            )
        for error in tried:
            if isinstance(error, BaseException):
                raise error

    async def _commit(self, shard: int, offset: int, timeout_s: float) -> None:
        reader, settings = self._reader, self.settings
        asked_at = reader.loop.time()
        answer = await reader.questions.commit_position(
            reader.group_name, shard, settings.name, offset, lease_ms=settings.lease_ms, seek=False,
            timeout_s=timeout_s, group_id=reader.group_id,
        )
        self.committed[shard] = answer.offset
        self._renewed_at[shard] = asked_at
        if answer.offset > offset and shard not in self._shared:
            self._shared.add(shard)
            log.warning(
                "subscription %s on shard %d of %s stands at %d, this reader at %d: another reader uses the name; "
                "each reads everything, and the furthest one counts",
                settings.name, shard, reader.group_name, answer.offset, offset,
            )

    async def close(self) -> None:
        """Stop committing by itself, after one last commit of what the application is done with."""
        if self.settings.auto_commit_s is None:
            return
        if self._task is not None:
            await cancelled(self._task)
        try:
            await self.commit(self.done, timeout_s=min(CLOSE_TIMEOUT_S, self._reader.settings.timeout_s))
        except TidemarkError as error:
            log.warning("subscription %s: the last commit failed: %s", self.settings.name, error)
