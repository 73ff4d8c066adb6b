"""Audit: one line of JSON for each administrative call and each refused one, to the logger `tidemark.audit`.

A line names who called, by certificate and address, what and of which log group; never payloads, keys or values.
Each caller has a bound of lines; what is beyond it is counted, and the next line tells.
Stays out: judging calls.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from .identity import Identity

LINES_AT_ONCE = 20
LINES_PER_S = 1.0
CALLERS_MAX = 1024
TEXT_MAX = 256
NOBODY = "nobody"

logger = logging.getLogger("tidemark.audit")


@dataclass(slots=True)
class _Budget:
    lines: float
    at: float
    suppressed: int = 0


class Audit:
    """The audit log of one process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def admin(self, caller: Identity | None, peer: str, method: str, about: str = "") -> None:
        """Note an administrative call that is let through."""
        self._write(logging.INFO, "admin", caller, peer, method, about, "")

    def refused(self, caller: Identity | None, peer: str, method: str, about: str, why: str) -> None:
        """Note a call that is turned down for who makes it."""
        self._write(logging.WARNING, "refused", caller, peer, method, about, why)

    def _write(
        self, level: int, event: str, caller: Identity | None, peer: str, method: str, about: str, why: str
    ) -> None:
        who = str(caller) if caller is not None else NOBODY
        budget = self._budget(f"{event} {who}")
        if budget.lines < 1:
            budget.suppressed += 1
            return
        budget.lines -= 1
        line = {"event": event, "caller": who, "peer": peer, "method": method}
        line |= {"about": about[:TEXT_MAX]} if about else {}
        line |= {"why": why[:TEXT_MAX]} if why else {}
        logger.log(level, "%s", json.dumps(line | ({"suppressed": budget.suppressed} if budget.suppressed else {})))
        budget.suppressed = 0

    def _budget(self, whose: str) -> _Budget:
        now = self._now()
        budget = self._budgets.get(whose)
        if budget is None:
            budget = self._budgets[whose] = _Budget(LINES_AT_ONCE, now)
            if len(self._budgets) > CALLERS_MAX:
                self._budgets.popitem(last=False)
        self._budgets.move_to_end(whose)
        budget.lines = min(LINES_AT_ONCE, budget.lines + (now - budget.at) * LINES_PER_S)
        budget.at = now
        return budget
