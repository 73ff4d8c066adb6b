"""File descriptors of a server process: raise their limit, and say how many of them connections may use.

A connection costs a descriptor before its caller has said anything.  Without a cap, idle connections take those that
the store needs for its files.
Stays out: gRPC's options (`channel`), what a caller may do once it is connected.
"""

from __future__ import annotations

import resource

RESERVED = 640
"""For what is no connection of a caller: the store keeps 256 files open, the rest are logs, links and the metrics."""

CONNECTIONS_MAX = 4096
CONNECTIONS_MIN = 64


def raise_limit() -> int:
    """Raise this process's soft limit of descriptors to the hard one and return the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # some systems report a hard limit that they do not grant
        return soft
    return hard


def connections_max(limit: int) -> int:
    """Return how many connections a server may hold under a limit of descriptors, some for any limit."""
    if limit == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(CONNECTIONS_MIN, min(CONNECTIONS_MAX, limit - RESERVED))
