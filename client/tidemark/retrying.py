"""How the client tries again: pauses that double, the hints of a node that refused, and calls that end for good.

Stays out: appends, whose order bounds what may be sent again (core's `producing`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Set
from contextlib import contextmanager

import grpc
import grpc.aio
from tidemark_core.base.refusals import Reason
from tidemark_wire.status import refusal_from_rpc_error

from .errors import Closed, Unavailable, error_of
from .routing import Routing

BACKOFF_FIRST_S = 0.01
BACKOFF_MAX_S = 0.5
SILENCE_S = 2.0  # a call that waits for an answer and hears nothing for so long looks for a newer leader
HOPELESS = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED)


@contextmanager
def closed_below() -> Iterator[None]:
    """Raise Closed for a call that ended with its channel, and not with the task that waits for it."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():   # our own end, not the call's
            raise
        raise Closed("the client was closed before this call was answered") from None


class Backoff:
    """The pauses between tries in seconds: each doubles, less up to half of it at random."""

    def __init__(self, max_s: float = BACKOFF_MAX_S, first_s: float = BACKOFF_FIRST_S) -> None:
        self._max_s = max_s
        self._first_s = self._next_s = first_s

    def reset(self) -> None:
        """Begin with the first pause again."""
        self._next_s = self._first_s

    def next(self) -> float:
        """Return the next pause."""
        pause_s, self._next_s = self._next_s, min(self._max_s, max(BACKOFF_FIRST_S, self._next_s * 2))
        return jittered(pause_s)


def jittered(pause_s: float) -> float:
    """Return a pause less up to half of it, so that clients do not try in step."""
    return pause_s * random.uniform(0.5, 1.0)  # noqa: S311


def follow(
    routing: Routing, group_name: str, shard: int, error: grpc.aio.AioRpcError, retried: Set[Reason]
) -> float:
    """Learn from a failed call to a leader; return the seconds that the node asks to wait.

    Raises Unavailable or RequestRefused where another try does not help.
    """
    routing.refresh_soon()
    hinted = refusal_from_rpc_error(error)
    if hinted is None:
        if error.code() in HOPELESS:
            raise Unavailable(f"{error.code().name} {error.details()}") from error
        return 0.0
    refused = hinted.refused
    if refused.reason not in retried:
        raise error_of(refused) from error
    routing.hint(group_name, shard, hinted.leader_node, hinted.leader_address, refused.epoch)
    return max(0, refused.retry_after_ms) / 1000
