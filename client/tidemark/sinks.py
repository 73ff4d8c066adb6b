"""Sinks of one log group: jobs that write in batches, whose parts join a batch before they append (rules W1-W5).

The group's first shard keeps them in its log.  Stays out: appending the rows, each once (`appending`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemark_core.sinks.fold import (
    BATCH_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    PARTS_MAX,
    Mark,
    SinkEnd,
    wrong_change,
    wrong_name,
)
from tidemark_core.sinks.view import SinkView

from .errors import InvalidArgument
from .questions import Questions
from .routing import Routing
from .settings import at_least

LEASE_S = 30 * 86_400.0


class Sinks:
    """The sinks of a group.  Made by `Client.sinks`; it keeps nothing open.

    Every call raises InvalidArgument, UnknownGroup, RequestRefused and Unavailable.
    """

    def __init__(self, questions: Questions, routing: Routing, group: str) -> None:
        self._questions = questions
        self._routing = routing
        self._group = group

    async def join(
        self, sink: str, batch: int, part: int, *, lease_s: float = LEASE_S, timeout_s: float = 30.0
    ) -> bool:
        """Let part `part` join a batch, before the part appends anything (W1).

        Batches of a sink ascend.  Returns True where the batch is marked: all its rows are there, so the part appends
        nothing.  The cluster keeps the sink for `lease_s` seconds from now on.  RequestRefused has the reason
        BATCH_PASSED, PART_LEFT_OUT or TOO_MANY_SINKS.
        """
        answer = await self._questions.join_sink(
            self._group, await self._shard(), _named(sink), _number("batch", batch, BATCH_MAX),
            _number("part", part, PARTS_MAX - 1), lease_ms=_lease_ms(lease_s), timeout_s=timeout_s)
        return answer.marked

    async def mark(
        self, sink: str, batch: int, parts: int, ends: Iterable[SinkEnd], *, lease_s: float = LEASE_S,
        timeout_s: float = 30.0,
    ) -> None:
        """Mark a batch as complete, once its parts 0 to `parts` - 1 have appended all their rows (W2).

        `ends` says for each shard with rows of the batch where they end.  The same call once more changes nothing.
        RequestRefused has the reason PART_LEFT_OUT where a part has joined that is not among them, BATCH_PASSED where
        a later batch has begun or other ends were marked, or TOO_MANY_SINKS.
        """
        change = Mark(_number("parts", parts, PARTS_MAX), tuple(sorted(SinkEnd(*each) for each in ends)))
        if (wrong := wrong_change(change)) is not None:
            raise InvalidArgument("ends", wrong)
        await self._questions.mark_sink(
            self._group, await self._shard(), _named(sink), _number("batch", batch, BATCH_MAX), change.parts,
            change.shards, lease_ms=_lease_ms(lease_s), timeout_s=timeout_s)

    async def list(self, *, timeout_s: float = 30.0) -> tuple[SinkView, ...]:
        """Return how far all sinks have come, in order of name."""
        return (await self._questions.sinks(self._group, await self._shard(), "", timeout_s=timeout_s)).sinks

    async def get(self, sink: str, *, timeout_s: float = 30.0) -> SinkView | None:
        """Return how far a sink has come, None where there is none of this name."""
        view = await self._questions.sinks(self._group, await self._shard(), _named(sink), timeout_s=timeout_s)
        return view.sinks[0] if view.sinks else None

    async def delete(self, sink: str, *, timeout_s: float = 30.0) -> bool:
        """Forget a sink; return whether there was one."""
        answer = await self._questions.delete_sink(
            self._group, await self._shard(), _named(sink), timeout_s=timeout_s)
        return answer.existed

    async def _shard(self) -> int:
        return min((await self._routing.find_group(self._group)).shards)


def _named(sink: Any) -> str:
    if not isinstance(sink, str):
        raise InvalidArgument("sink", f"is {sink!r}, must be a text")
    if (wrong := wrong_name(sink)) is not None:
        raise InvalidArgument("sink", wrong.removeprefix("sink "))
    return sink


def _number(field: str, value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidArgument(field, f"is {value!r}, must be a number from 0 to {most}")
    return value


def _lease_ms(lease_s: Any) -> int:
    lease_ms = int(at_least("lease_s", lease_s, LEASE_MS_MIN / 1000) * 1000)
    if lease_ms > LEASE_MS_MAX:
        raise InvalidArgument("lease_s", f"is {lease_s!r}, must be a number of at most {LEASE_MS_MAX // 1000}")
    return lease_ms
