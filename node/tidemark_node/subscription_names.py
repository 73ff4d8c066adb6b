"""Names of subscriptions: how many of one shard a caller may create, as the leader of the shard counts them (T12).

The log does not say who created a subscription, so a new leader counts from nothing; a caller that commits a position
again is its creator there.
Stays out: how many names a shard holds at most (core).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused


class SubscriptionNames:
    """Creators of subscriptions; each has at most `each_max` of a shard."""

    def __init__(self, each_max: int) -> None:
        self._each_max = each_max
        self._creators: dict[ShardId, dict[str, str]] = {}
        self._under_way: Counter[tuple[ShardId, str]] = Counter()

    def refusal(self, shard: ShardId, name: str, who: str, held: Callable[[], Container[str]]) -> Refused | None:
        """Note that a caller commits to `name`, or say why it may not; `held` tells which names the shard has."""
        creators = self._creators.setdefault(shard, {})
        if name in creators:
            return None
        own = [each for each, creator in creators.items() if creator == who]
        if len(own) >= self._each_max:
            known = held()
            if name in known:
                return None     # it is there, so a position takes no room
            for gone in own:
                if gone not in known and not self._under_way[shard, gone]:
                    del creators[gone]
            if sum(creator == who for creator in creators.values()) >= self._each_max:
                return Refused(
                    Reason.TOO_MANY_SUBSCRIPTIONS,
                    f"{who} has created {self._each_max} subscriptions of this shard, and one caller may create no "
                    "more: delete some, or raise --subscription-names-max",
                )
        creators[name] = who
        return None

    @contextmanager
    def under_way(self, shard: ShardId, name: str) -> Iterator[None]:
        """Keep a name in the count while its commit is not answered."""
        self._under_way[shard, name] += 1
        try:
            yield
        finally:
            self._under_way[shard, name] -= 1
            if not self._under_way[shard, name]:
                del self._under_way[shard, name]

    def deleted(self, shard: ShardId, name: str) -> None:
        """Note that a subscription is gone."""
        self._creators.get(shard, {}).pop(name, None)
