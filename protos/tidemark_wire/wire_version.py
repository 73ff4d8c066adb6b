"""Wire versions: which ones this build speaks, and which one two sides of a stream agree on.

A build speaks its own version and the one before, so that a cluster can be rolled from release to release.  Each side
offers the oldest and the newest version that it speaks, and both compute the newest that is common.  Builds up to
version 4 offer one version and accept no other: this build offers its oldest where they look.
Stays out: how an offer travels (`channel`), how frames of a version look (`frames`).
"""

from __future__ import annotations

WIRE_VERSION = 5
WIRE_VERSION_OLDEST = 4

VERSION_OF_PLANES = 5
"""From this version on a message on a link names its plane; links of older versions carry the log plane alone."""

VERSION_OF_REACH = 5
"""From this version on a node says whom it reaches (O43)."""

VERSION_OF_UNKNOWN_PRODUCERS = 5
"""From this version on clients know the refusal PRODUCER_UNKNOWN; older ones get SEQUENCE_GAP in its place (L25)."""

VERSION_OF_DOCUMENTS = 5
"""From this version on a node holds shards of documents; a copy of one is never given to an older node (U46)."""

VERSION_OF_GROUP_IDS = 5
"""From this version on a node reads the id of the group that an append or a START is for."""

VERSION_OF_CLAIMS = 5
"""From this version on a node reads claims of producers; a log that an older node keeps too gets none (L26)."""

VERSION_OF_EXPECT = 5
"""From this version on a node reads the offset that an append expects (L29)."""

VERSION_OF_SINKS = 5
"""From this version on a node reads records of sinks; a log that an older node keeps too gets none (W1)."""


class WireVersionMismatch(Exception):
    """The sides have no wire version in common; the message says what each speaks and what to do."""


def agreed(oldest: int, newest: int) -> int:
    """Return the newest wire version that this build and a side that speaks `oldest` to `newest` have in common.

    Raises WireVersionMismatch when there is none.
    """
    version = min(newest, WIRE_VERSION)
    if version < max(oldest, WIRE_VERSION_OLDEST):
        offered = str(oldest) if oldest >= newest else f"{oldest} to {newest}"
        raise mismatch(offered)
    return version


def mismatch(offered: str) -> WireVersionMismatch:
    """Return the error for an offer that this build cannot take."""
    return WireVersionMismatch(
        f"wire version {offered or 'none'} was offered, this build speaks {WIRE_VERSION_OLDEST} to {WIRE_VERSION}: "
        "run the same Tidemark release on both sides, or two that follow each other"
    )
