"""A stretch of this node's store for a reader: headers first, payloads only of what is its to send.

Runs in reader threads.  Stays out: what is its to send, and how the log is cut into items (core's `delivery`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidemark_core.base.ids import ShardId
from tidemark_core.delivery.stretch import Asked, Hole, Piece, Rule, Stretch
from tidemark_core.delivery.stretch import pieces as pieces_of

from .store import Store
from .store_errors import EntryDamaged


def pieces(
    store: Store, shard: ShardId, first: int, last: int, order: int, holes: Iterable[Hole]
) -> Iterator[Piece]:
    """Yield what lies in [first, last] in order; `order` is that of the block around `first`.

    Raises EntryDamaged at the first offset that cannot be told.
    """
    return pieces_of(store.walk(shard, first, last), first, order, holes)


def take(store: Store, shard: ShardId, rule: Rule, asked: Asked) -> Stretch:
    """Look at the log from `asked.first` on and bring what is this node's to send."""
    found = Stretch(asked.first - 1)
    try:
        found.look(rule, asked, store.walk(shard, asked.first, asked.last))
    except EntryDamaged as damaged:
        found.damaged_at = damaged.offset
    whole = store.whole(shard, found.wanted)
    found.bring(whole.entries, whole.damaged_at)
    return found
