"""The planes of a node, one row each: number and how to build it.

A plane that sends messages has a row in `PLANE_CODECS` of `tidemark_wire.convert`, one that stores rows has families in
`tidemark_node.families`, one that serves callers has a part with methods in `tidemark_node.main`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .base.ids import LOG_PLANE, Member
from .base.plane import Plane
from .log_plane import LogPlane
from .replication.replica import Limits

PlaneTable = Mapping[int, Callable[[Member, Limits], Plane]]

PLANES: PlaneTable = {
    LOG_PLANE: LogPlane,
}
"""Numbers fit one byte, travel in link frames and are never reused."""
