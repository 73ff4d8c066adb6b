"""Source: what a reader knows of one member, and how far it lets it send.

Stays out: what follows from it for the other members.
"""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Item, Shipment

NOBODY_HEARD = -1


@dataclass(slots=True)
class Source:
    """One member.  All but the last block is about its stream in the current generation."""

    node: str
    connected: bool = False
    started: bool = False         # it answered START, and its stream has no hole
    asked_ms: int = 0             # when START was sent
    heard_ms: int = 0             # when it said something last, or START was sent
    retry_ms: int | None = None   # when START is sent again: it was refused, or the stream has a hole
    through: int = -1             # it has sent all it has to send up to here
    beyond: int = NOBODY_HEARD    # highest offset of an item it sent
    sends: bool = False           # it shows that it is able to send, since START
    sent_bytes: int = 0
    granted_bytes: int = 0

    released: int = -1            # highest released offset it told of
    first: int = 0                # first offset it holds
    corrupt_to: int = -1          # end of what failed its checksum: it is not trusted before that is behind us
    blamed_ms: int = 0            # when it was listed for silence last
    patience_ms: int = 0          # how long it may say nothing, before that is forgiven
    bytes_received: int = 0
    entries_delivered: int = 0

    def begin(self, now_ms: int, first: int, window_bytes: int) -> None:
        """START is on its way: nothing is known of the new stream."""
        self.started = self.sends = False
        self.asked_ms = self.heard_ms = now_ms
        self.retry_ms = None
        self.through = first - 1
        self.beyond = NOBODY_HEARD
        self.sent_bytes = 0
        self.granted_bytes = window_bytes

    def blame(self, now_ms: int, patience_ms: int) -> None:
        """It is listed for silence; next time it may say nothing for `patience_ms` (S14b)."""
        self.blamed_ms, self.patience_ms = now_ms, patience_ms

    def stop(self, retry_ms: int | None) -> None:
        """Nothing more is taken from this stream; START is sent again at `retry_ms`."""
        self.started = self.sends = False
        self.retry_ms = retry_ms

    def owes(self, released: int) -> bool:
        """Say whether it has something to look through, and leave to send what it finds."""
        return self.started and self.through < released and self.sent_bytes < self.granted_bytes

    def violation(self, shipment: Shipment, share: int) -> str | None:
        """Return what is wrong with a shipment that decodes, or None."""
        if shipment.first > self.through + 1:
            return f"it left out [{self.through + 1}, {shipment.first})"
        if shipment.through < shipment.first - 1:
            return f"a shipment ends at {shipment.through}, before its begin at {shipment.first}"
        lowest, before, sent = -1, 0, self.sent_bytes
        for item in shipment.items:
            inside = shipment.first <= item.last <= shipment.through
            if not (lowest <= item.first <= item.last and inside and item.size >= 0):
                return f"item [{item.first}, {item.last}] of {item.size} bytes is out of order"
            lowest = item.last + 1
            if item.size:
                sent += item.size
                before = sent - item.size_of_last
        # A whole share more than was granted is no matter of counting: unchecked it would fill our memory.
        if before > self.granted_bytes + share:
            return f"it sent more than {before} bytes and was granted {self.granted_bytes}"
        return None

    def take(self, item: Item) -> None:
        """Count an item of an accepted shipment."""
        self.sent_bytes += item.size
        if item.last > self.beyond:
            self.beyond = item.last
