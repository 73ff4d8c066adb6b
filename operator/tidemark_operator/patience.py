"""Patience: how long what could be placed at once waits for the zones of nodes that have not answered yet.

Stays out: which nodes are to come (`placement`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable

from .condition_memory import some
from .model import Node
from .placement import Hosted, nodes_to_come

log = logging.getLogger(__name__)

TO_COME_S = 60.0


class Patience:
    """Remembers since when each group or keyspace waits; one for each kind."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: dict[str, float] = {}

    def left_s(self, one: Hosted, nodes: Iterable[Node]) -> float | None:
        """Return how long `one` still waits, at most 0 once it has waited enough; None: no such node is to come."""
        awaited = nodes_to_come(one, nodes)
        if not awaited:
            return None
        if one.name not in self._until:
            log.info("%s waits for %s, so that its copies are in distinct zones", one.title, some(awaited))
            self._until[one.name] = self._now() + TO_COME_S
        return self._until[one.name] - self._now()

    def keep(self, names: Collection[str]) -> float | None:
        """Forget all others; return in how many seconds the first of these has waited enough, None where none waits."""
        self._until = {name: until for name, until in self._until.items() if name in names}
        left = [until - self._now() for until in self._until.values()]
        return min((each for each in left if each > 0), default=None)
