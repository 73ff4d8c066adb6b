"""Clock skew: which nodes disagree with the median of the clocks of all nodes that are up (rule C5).

Pure.  Stays out: reading clocks (`nodes`), what a wrong clock may not do (`replication.clocks` of the core).
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark_core.replication.clocks import AGREES_MS

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def clock_skews(ahead_ms: Mapping[str, int]) -> dict[str, int]:
    """Return how far the clock of each node is from the median where that is more than a minute, in milliseconds.

    `ahead_ms` is how far each clock is ahead of one clock that does not jump.  Of an even number the lower one in the
    middle is the median.
    """
    if not ahead_ms:
        return {}
    median = sorted(ahead_ms.values())[(len(ahead_ms) - 1) // 2]
    return {
        node: ahead - median for node, ahead in sorted(ahead_ms.items()) if abs(ahead - median) > AGREES_MS}


def skew_text(skew_ms: int) -> str:
    """Say how far a clock is off, in whole units: "3 min ahead", "8 days behind"."""
    return f"{span_text(abs(skew_ms))} {'ahead' if skew_ms > 0 else 'behind'}"


def span_text(size_ms: int) -> str:
    """Say how long a time is, in whole units."""
    number, unit = (
        (size_ms / DAY_MS, "days") if size_ms >= 2 * DAY_MS
        else (size_ms / HOUR_MS, "h") if size_ms >= 2 * HOUR_MS else (size_ms / MINUTE_MS, "min"))
    return f"{number:.0f} {unit}"
