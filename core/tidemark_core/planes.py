"""The planes of a node, one row each: number and how to build it.

A plane needs rows in three more tables: its messages in `tidemark_wire.planes`, its column families in
`tidemark_core.base.layout`, its methods in `tidemark_node.rpc`.
"""

from __future__ import annotations

from collections.abc import Callable

from .base.ids import LOG_PLANE, Member
from .base.plane import Plane
from .log_plane import LogPlane
from .replication.replica import Limits

PLANES: dict[int, Callable[[Member, Limits], Plane]] = {
    LOG_PLANE: LogPlane,
}
"""Numbers fit one byte, travel in link frames and are never reused."""
