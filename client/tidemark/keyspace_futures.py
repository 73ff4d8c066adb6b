"""Keys with stamps from the future, after clocks were wrong, and the repair of their Strings (D84).

Stays out: asking nodes (keyspace_calls), what a repair is (core).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark_core.optimistic.stamps import Stamp
from tidemark_wire.v1 import keyspaces_pb2 as wire

from .errors import NotRepaired
from .keyspace_results import named
from .keyspace_views import stamp_of

KEYS_MAX = 10_000
"""So many keys of a range are listed; repair them, then list again."""

_WHY = {
    "past": "a stamp is not from the future there; its time has come and the key takes writes, or that node runs since "
            "its clock was ahead: restart it, and repeat",
    "full": "too many stamps of the key or its range were replaced; wait until the floor of the range has passed them",
    "elements": "its Set or Map has stamps from the future, which are not replaced; wait until their time has come, or "
                "copy it to another key or keyspace",
    "future": "the clock of the node that was asked is ahead of that owner's; correct it, and repeat",
}


@dataclass(frozen=True, slots=True)
class FutureKey:
    """A key and its greatest stamp, which is from the future; `elements`: of its Set or Map, which is not repaired."""

    key: bytes
    stamp: Stamp
    elements: bool


@dataclass(frozen=True, slots=True)
class ReplacedStamp:
    """A stamp of a String, and the one that stands in its place at every owner."""

    was: Stamp
    became: Stamp


def page_of(page: wire.FuturesPage) -> list[FutureKey]:
    """Return the keys of a page as users get them."""
    return [FutureKey(each.key, stamp_of(each.stamp), each.elements) for each in page.keys]


def replaced_of(name: str, key: bytes, answer: wire.FutureRepaired) -> tuple[ReplacedStamp, ...]:
    """Return what a repair replaced; raises NotRepaired where something is left."""
    replaced = tuple(ReplacedStamp(stamp_of(each.was), stamp_of(each.became)) for each in answer.replaced)
    if answer.outcome == "ok":
        return replaced
    missing = tuple(member.node for member in answer.missing)
    if answer.outcome in _WHY:
        why = (f"{', '.join(missing)}: " if missing else "") + _WHY[answer.outcome]
    else:
        silent = f"{', '.join(missing)} did not answer" if missing else "not all owners have answered"
        why = f"{silent}; repeat it when they do"
    raise NotRepaired(
        f"{named(name, key)} is not repaired: {why}", keyspace=name, key=key,
        outcome=answer.outcome, missing=missing, replaced=replaced)
