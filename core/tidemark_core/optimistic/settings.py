"""Settings: the bounds of one keyspace, as its resource has them and every node is given them.

Stays out: bounds of a node (`plane`), what a coordinator does for one operation (`coordinating`), the ring.
"""

from __future__ import annotations

from dataclasses import dataclass

WRITE_WINDOW_MS = 600_000
"""The write window of every node (D68): a floor stays at least so far behind, whatever the grace of its keyspace."""


SKEW_MS = 500
"""The bound of the clocks of nodes (D54).

A node has one clock for all keyspaces: what it stores of one of them raises the stamps that it draws for the others.
"""


@dataclass(frozen=True, slots=True)
class KeyspaceSettings:
    """Times are milliseconds.

    hint_window_ms      a node that has held a hint of a range for so long takes no more of that range; 0: it takes none
    repair_every_ms     each owner pulls from each other owner so often by itself (D74); 0: only when it is asked to
    grace_ms            a floor stays so far behind: what was removed is remembered at least so long.  A range whose
                        last complete exchange is older than half of it, and than one and a half intervals, is late
    repair_bytes        a node sends so many bytes a second for exchanges and replays of hints; 0: as many as it can
    """

    hint_window_ms: int = 10_800_000
    repair_every_ms: int = 86_400_000
    grace_ms: int = 864_000_000
    repair_bytes: int = 32 << 20


DEFAULTS = KeyspaceSettings()
"""Those of a resource that names none."""
