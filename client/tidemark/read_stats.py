"""Counters of a reader: what crossed the network, from whom, and what was done about trouble.

Stays out: deciding anything (core's `delivery`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class ReadStats:
    """What one shard, or all of a reader, has seen so far; bytes are of whole frames received, of entries delivered.

    `rewinds` counts by the reason of each, `known_down` names per shard who is passed over now, and why.
    """

    bytes_received: int = 0
    bytes_delivered: int = 0
    duplicates: int = 0                                            # entries that had come before
    failovers: int = 0                                             # a node was put into known_down, a leader was left
    slow: int = 0                                                  # a node was found slow
    all_send_all: int = 0                                          # switches to asking every node for everything
    rewinds: Counter[str] = field(default_factory=Counter)
    received_from: Counter[str] = field(default_factory=Counter)   # bytes by node
    known_down: dict[int, dict[str, str]] = field(default_factory=dict)

    @property
    def received_over_delivered(self) -> float:
        """Bytes that crossed the network for each byte delivered; 1 is every byte once."""
        return self.bytes_received / self.bytes_delivered if self.bytes_delivered else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """The part of all received bytes that each node sent."""
        total = self.bytes_received or 1
        return {node: count / total for node, count in sorted(self.received_from.items())}

    def received(self, node: str, size: int) -> None:
        """Count a frame."""
        self.bytes_received += size
        self.received_from[node] += size


def together(parts: Iterable[ReadStats]) -> ReadStats:
    """Return the sum."""
    total = ReadStats()
    for part in parts:
        total.bytes_received += part.bytes_received
        total.bytes_delivered += part.bytes_delivered
        total.duplicates += part.duplicates
        total.failovers += part.failovers
        total.slow += part.slow
        total.all_send_all += part.all_send_all
        total.rewinds.update(part.rewinds)
        total.received_from.update(part.received_from)
        total.known_down.update(part.known_down)
    return total
