"""The network: every message may be delayed, lost, repeated or overtaken; links may be cut in one direction or slow.

Names are those of nodes and operators; a message knows who sent it and for whom it was meant.
Stays out: who may talk to whom, and what is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .dice import Dice


@dataclass(slots=True)
class NetworkOptions:
    """`fifo`: a link keeps the order of what it delivers, as a stream does."""

    delay_ms_min: int = 1
    delay_ms_max: int = 6
    loss: float = 0.0
    repeat: float = 0.0
    straggle: float = 0.0       # chance of a delay of up to a second
    fifo: bool = False


class Network:
    """Draws the fate of each message and asks `schedule` to deliver it."""

    def __init__(
        self, options: NetworkOptions, dice: Dice, schedule: Callable[..., None], now: Callable[[], int]
    ) -> None:
        self.options = options
        self._dice = dice
        self._schedule = schedule
        self._now = now
        self.cut: dict[tuple[str, str], int] = {}
        self.slow: dict[tuple[str, str], int] = {}
        self._delivered_at: dict[tuple[str, str], int] = {}

    def is_open(self, source: str, target: str) -> bool:
        return (source, target) not in self.cut

    def cut_link(self, source: str, target: str) -> None:
        """Cut one direction; cuts nest."""
        self.cut[source, target] = self.cut.get((source, target), 0) + 1

    def mend_link(self, source: str, target: str) -> None:
        left = self.cut.get((source, target), 0) - 1
        if left > 0:
            self.cut[source, target] = left
        else:
            self.cut.pop((source, target), None)

    def calm(self) -> None:
        """Stop every fault: from now on messages arrive, quickly and once."""
        self.cut.clear()
        self.slow.clear()
        options = self.options
        options.loss = options.repeat = options.straggle = 0.0

    def send(self, source: str, target: str, deliver: Callable[..., None], *arguments: Any) -> None:
        """Deliver, perhaps: `deliver(*arguments)` after a delay, unless the link is cut or the message lost."""
        link = (source, target)
        if link in self.cut:
            return
        options, dice = self.options, self._dice
        if options.loss and dice.draw() < options.loss:
            return
        self._deliver(link, deliver, arguments)
        if options.repeat and dice.draw() < options.repeat:
            self._deliver(link, deliver, arguments)

    def _deliver(self, link: tuple[str, str], deliver: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        options, dice = self.options, self._dice
        delay = options.delay_ms_min + int(dice.draw() * (options.delay_ms_max - options.delay_ms_min + 1))
        if options.straggle and dice.draw() < options.straggle:
            delay += dice.around(200)
        delay += self.slow.get(link, 0)
        if options.fifo:
            at = max(self._delivered_at.get(link, 0), self._now() + delay)
            self._delivered_at[link] = at
            delay = at - self._now()
        # Cuts are checked again on arrival: what was under way when a cable is pulled is lost with it.
        self._schedule(delay, self._arrive, link, deliver, arguments)

    def _arrive(self, link: tuple[str, str], deliver: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if link not in self.cut:
            deliver(*arguments)
