"""Location: where a node or reader stands, and how near two of them are (S31, S33).

Stays out: where locations come from; labels and flags are the shells' business.
"""

from __future__ import annotations

from typing import NamedTuple

SCOPES = ("region", "zone", "cluster", "row", "rack")
LABEL_LENGTH_MAX = 63
TEXT_LENGTH_MAX = 1_000

_LABEL_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


class InvalidLocation(ValueError):
    """The text is no location; the message names the part."""


class Location(NamedTuple):
    """Labels from the widest scope to the narrowest; an empty one is unknown."""

    region: str = ""
    zone: str = ""
    cluster: str = ""
    row: str = ""
    rack: str = ""

    def __str__(self) -> str:
        return ",".join(f"{scope}={label}" for scope, label in zip(SCOPES, self, strict=True) if label)


def parse_location(text: str) -> Location:
    """Read "region=eu,zone=a,rack=r1"; raises InvalidLocation naming what is wrong."""
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidLocation(f"location: the text is longer than {TEXT_LENGTH_MAX} characters")
    labels: dict[str, str] = {}
    for part in filter(None, (part.strip(" ") for part in text.split(","))):
        scope, separator, label = part.partition("=")
        if scope not in SCOPES or not separator:
            raise InvalidLocation(
                f"location: {part[:LABEL_LENGTH_MAX]!r} is not one of {', '.join(SCOPES)} and a label, as in zone=a"
            )
        if not 1 <= len(label) <= LABEL_LENGTH_MAX or not _LABEL_CHARACTERS.issuperset(label):
            raise InvalidLocation(
                f"location: the label of {scope} must be 1 to {LABEL_LENGTH_MAX} letters, digits, dots, dashes or "
                "underscores"
            )
        if scope in labels:
            raise InvalidLocation(f"location: {scope} is given twice")
        labels[scope] = label
    return Location(**labels)


def priority(reader: Location, node: Location) -> int:
    """Return how many scopes the two share, 0 (nothing known in common) to 5 (same rack).

    Scopes are nested: two racks of one name in different zones are not the same rack.  A scope that either side does
    not name is passed over, so that "zone=a" alone compares zones.
    """
    shared = 0
    for ours, theirs in zip(reader, node, strict=True):
        if not (ours and theirs):
            continue
        if ours != theirs:
            break
        shared += 1
    return shared
