"""Credit: how many bytes a stream may send before the consumer acknowledges some (rule U61).

Totals travel, not differences: a repeated acknowledgement counts once.  Stays out: what is sent, when a stream is too
slow.
"""

from __future__ import annotations

from ..base.errors import RemoteViolation

WINDOW_BYTES_MIN = 64 << 10
WINDOW_BYTES_MAX = 64 << 20
WINDOW_BYTES_DEFAULT = 4 << 20


def wrong_window(window: int) -> str | None:
    """Return what is wrong with the window that a consumer asks for, None when nothing is."""
    if not WINDOW_BYTES_MIN <= window <= WINDOW_BYTES_MAX:
        return f"window is {window} bytes, must be {WINDOW_BYTES_MIN} to {WINDOW_BYTES_MAX}"
    return None


class Credit:
    """The bytes of one stream, in totals since it began; a message may overrun the window, the next one waits."""

    __slots__ = ("acked", "progress_ms", "sent", "window")

    def __init__(self, window: int, now_ms: int) -> None:
        self.window = window
        self.sent = 0
        self.acked = 0
        self.progress_ms = now_ms   # when all was acknowledged last, or more of it

    @property
    def owed(self) -> int:
        """Bytes sent and not acknowledged."""
        return self.sent - self.acked

    @property
    def free(self) -> bool:
        """Say whether one more message may be sent."""
        return self.owed < self.window

    def spend(self, size: int, now_ms: int) -> None:
        """Count a message that is sent."""
        if not self.owed:
            self.progress_ms = now_ms
        self.sent += size

    def acknowledge(self, total: int, now_ms: int) -> None:
        """Count an acknowledgement of `total` bytes since the stream began; raises RemoteViolation."""
        if total > self.sent:
            raise RemoteViolation(f"U61: {total} bytes are acknowledged, {self.sent} were sent")
        if total > self.acked:
            self.acked, self.progress_ms = total, now_ms
