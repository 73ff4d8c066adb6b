"""Reach: a link with every member that shares a shard with this node, and word to operators whom it reaches (O43).

One message speaks for all shards.  It goes out when it says something new, and again three times in a silence, so that
an operator that missed one, or is new, knows.  Stays out: what counts as silence, and what follows from it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tidemark_core.base.ids import Member
from tidemark_core.replication.messages import Reach
from tidemark_core.replication.records import QUORUM_SILENCE_MS
from tidemark_wire.tasks import background, cancelled
from tidemark_wire.wire_version import VERSION_OF_REACH

from .driver import Driver
from .peers import Links
from .routing import Routing

LOOKS = 6
REPEATS = 3
"""So many looks and repeated messages in one silence."""
LOOK_MAX_S = 1.0
"""However long a silence is, news of links goes out soon: an election of the operator goes by it."""


class Reporter:
    """Tells operators what the core knows of links and leaders."""

    def __init__(self, driver: Driver, links: Links, routing: Routing) -> None:
        self._driver = driver
        self._links = links
        self._routing = routing
        self._map: Any = None
        self._neighbours: set[Member] = set()
        self._said: Reach | None = None
        self._said_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = background(self._run(), "telling whom this node reaches")

    async def stop(self) -> None:
        await cancelled(self._task)

    async def _run(self) -> None:
        while True:
            silence_ms = self._routing.quorum_silence_ms or QUORUM_SILENCE_MS
            await asyncio.sleep(min(silence_ms / 1000 / LOOKS, LOOK_MAX_S))
            if self._driver.open:
                self.look(silence_ms)

    def look(self, silence_ms: int) -> None:
        """Say what is new, or what is due again."""
        if self._routing.map is not self._map:
            self._map = self._routing.map
            self._neighbours = self._routing.neighbours(self._links.me.node)
        self._links.hold(self._neighbours)
        reach = self._driver.core.log.reach(self._driver.now_ms(), silence_ms)
        # The time without a majority grows with each look.
        facts = replace(reach, unheard=tuple(replace(found, silent_ms=found.silent_ms // silence_ms)
                                             for found in reach.unheard))
        now_s = asyncio.get_running_loop().time()
        if facts != self._said or now_s - self._said_s >= silence_ms / 1000 / REPEATS:
            self._said, self._said_s = facts, now_s
            self._links.tell_operators(reach, VERSION_OF_REACH)
