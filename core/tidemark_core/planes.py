"""The planes of a node, one row each: number and how to build it.

A plane that sends messages has a row in `PLANE_CODECS` of `tidemark_wire.convert`, one that stores rows has families in
`tidemark_node.families`, one that serves callers has a part with methods in `tidemark_node.main`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from .base.ids import KEYSPACE_PLANE, LOG_PLANE
from .base.limits import Limits
from .base.plane import NodeFacts, Plane
from .log_plane import LogPlane
from .optimistic.plane import KeyspaceLimits, KeyspacePlane

PlaneTable = Mapping[int, Callable[[NodeFacts], Plane]]
"""Numbers fit one byte, travel in link frames and are never reused.  A row brings the limits of its plane."""


def planes(limits: Limits | None = None, keyspaces: KeyspaceLimits | None = None) -> PlaneTable:
    """Return the planes of this release; `limits` are those of shards, `keyspaces` those of ranges."""
    return {
        LOG_PLANE: partial(LogPlane, limits=limits or Limits()),
        KEYSPACE_PLANE: partial(KeyspacePlane, number=KEYSPACE_PLANE, limits=keyspaces or KeyspaceLimits()),
    }
