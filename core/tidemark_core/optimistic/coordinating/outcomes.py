"""Outcomes: how an operation ends, and the messages it sends meanwhile."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ...base.ids import Member
from ..messages import Inspect, Keep, Load, RingTold, Store


class Outcome(Enum):
    """The end of an operation."""

    OK = "ok"
    WEAK = "weak"          # enough for the request, fewer than the keyspace asks for (D77)
    SLOPPY = "sloppy"      # enough only with nodes that keep the change for owners: a read may miss it (D73)
    FUTURE = "future"      # our stamps are too far ahead of the owners' clocks; nothing was stored
    BELOW = "below"        # a floor or promises refuse the stamps, which were given: too few members may store them
    PAST = "past"          # a stamp that is to be taken back is not from the future at some owner (D84)
    FULL = "full"          # too many stamps are taken back in the range or of the key
    ELEMENTS = "elements"  # a stamp of a Set or Map is from the future: none of these is taken back
    UNKNOWN = "unknown"    # fewer than enough have answered; a write may take effect at any later time


class To(NamedTuple):
    """A message and the member that gets it."""

    member: Member
    message: Store | Load | RingTold | Keep | Inspect
