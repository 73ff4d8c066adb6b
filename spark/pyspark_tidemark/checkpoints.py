"""Checkpoints: whether a stored position is one that a query of this release can go on from (P20).

Stays out: what a position says (the positions of each mode).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .schema import Mode


class UnreadableCheckpoint(ValueError):
    """A stored position belongs to another query or release, or is damaged; nothing was read."""


def check_stored(stored: Mapping[str, Any], group: str, mode: Mode, newest: int) -> None:
    """Raise UnreadableCheckpoint for a position of another group or mode, or of a version above `newest`."""
    version = stored.get("version")
    if type(version) is not int or version < 1:
        raise UnreadableCheckpoint(f"The checkpoint has no version that Tidemark wrote: {version!r}.")
    if version > newest:
        raise UnreadableCheckpoint(
            f"The checkpoint has version {version}, and this release reads up to {newest}: "
            "run the release that wrote it, or a newer one.")
    if stored.get("group") != group:
        raise UnreadableCheckpoint(
            f"The checkpoint belongs to group {stored.get('group')!r}, and the query reads {group!r}: "
            "give the query a checkpoint of its own.")
    if (of := stored.get("mode", Mode.LOG)) != mode:
        raise UnreadableCheckpoint(
            f"The checkpoint belongs to mode={of}, and the query has mode={mode}: "
            "give the query a checkpoint of its own.")
