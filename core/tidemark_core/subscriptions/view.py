"""View: the subscriptions of one shard as a person sees them: where each stands and how much of the log that is.

Stays out: deciding; it is a copy, made when somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """One subscription.  `offset` is the next one wanted; `expires_in_ms` is below 0 once it pins nothing."""

    name: str
    offset: int
    lease_ms: int
    committed_ms: int     # by the log's clock
    expires_in_ms: int
    lag: int              # offsets between it and the end of what may be read; who can, counts records instead
    bytes_behind: int     # of log from there to the head, counted from the start of the stretch it lies in


@dataclass(frozen=True, slots=True)
class SubscriptionsView:
    """All subscriptions of one shard, in order of name."""

    epoch: int
    first: int            # first offset kept
    released: int         # last offset that may be read
    subscriptions: tuple[SubscriptionView, ...]
