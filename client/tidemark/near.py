"""How near members are to a reader, by what the shard map says of where they stand.

Stays out: what nearness is (core's `delivery.location`) and what follows from it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidemark_core.delivery.location import InvalidLocation, Location, parse_location, priority
from tidemark_wire.v1 import common_pb2

from .routing import Routing

log = logging.getLogger("tidemark.delivery")


def location_of(info: common_pb2.NodeInfo | None) -> Location:
    """Return where a node stands: its location, else its zone, else nowhere known."""
    if info is None:
        return Location()
    try:
        return parse_location(info.location) if info.location else Location(zone=info.zone)
    except InvalidLocation as error:
        log.warning("node %s: %s", info.node, error)
        return Location()


def shared_scopes(routing: Routing, location: Location, nodes: Iterable[str]) -> tuple[int, ...]:
    """Return how many location scopes each node shares with the reader."""
    return tuple(priority(location, location_of(routing.node(node))) for node in nodes)
