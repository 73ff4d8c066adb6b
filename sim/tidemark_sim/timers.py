"""The timers of one simulated process, by address and name; setting one again replaces it.

Stays out: which clock a time is of.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemark_core.base.effects import SetTimer, TimerFired
from tidemark_core.base.ids import Address

from .timeline import Timeline

Key = tuple[Address, str]


class Timers:
    """Calls `fire` when a timer is due; `holds` may keep the call of a paused process for later, and says so."""

    def __init__(
        self, timeline: Timeline, fire: Callable[[TimerFired], None], holds: Callable[..., bool] = lambda *_: False
    ) -> None:
        self._timeline = timeline
        self._fire = fire
        self._holds = holds
        self._tokens: dict[Key, int] = {}
        self._token = 0

    def set(self, effect: SetTimer, delay_ms: Callable[[int], int]) -> None:
        """Set a timer, or take it back; `delay_ms` says how long it is until a time of the process's clock."""
        key = (effect.address, effect.name)
        if effect.at_ms is None:
            self._tokens.pop(key, None)
            return
        self._token += 1
        self._tokens[key] = self._token
        self._timeline.after(max(0, delay_ms(effect.at_ms)), self._due, key, self._token)

    def clear(self) -> None:
        """Forget every timer: the process is gone."""
        self._tokens.clear()

    def _due(self, key: Key, token: int) -> None:
        if self._tokens.get(key) != token:
            self._timeline.idle()
        elif not self._holds(self._due, key, token):
            del self._tokens[key]
            self._fire(TimerFired(*key))
