"""What to take over next of what another issuer has issued: `plan(now, takers, overlap) -> actions`.

Whoever issues has a CA of his own and replaces it when he likes; each certificate comes with the CA it is of, and with
no other.  So what is offered is not simply used: rules X2 to X4 hold here too, for CAs of others.
Pure.  Every plan is safe to carry out in any order, in part, or twice; then one plans again.
Stays out: asking for certificates, and reading them (`keeper`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tidemark_wire.identity import Identity

from .rotation import Publish


@dataclass(frozen=True, slots=True)
class Shown:
    """A certificate and the CAs beside it, by their hashes; `vouching` are those of `bundle` that vouch for it."""

    id: str
    vouching: frozenset[str]
    bundle: frozenset[str]
    created: datetime
    expires: datetime


@dataclass(frozen=True, slots=True)
class Taker:
    """Whoever has, or is to have, a certificate: what is offered, what its files are, and whether it has loaded those.

    As in `rotation`, one that runs not, or cannot say, has loaded them (X4).
    """

    identity: Identity
    offered: Shown | None = None
    held: Shown | None = None
    loaded: bool = True


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Give a holder the certificate that is offered, and these CAs to trust."""

    holder: Identity
    bundle: frozenset[str]


def plan(now: datetime, takers: Sequence[Taker], overlap: timedelta) -> tuple[TakeOver | Publish, ...]:
    """Return the next actions; none when everything is as it should be, or has to wait."""
    takers = [
        replace(taker, offered=None) if taker.offered is not None and taker.offered.expires <= now else taker
        for taker in takers]
    bundle = _bundle(now, takers, overlap)
    actions: list[TakeOver | Publish] = []
    for taker in takers:
        if taker.offered is not None and _may_show(now, taker, taker.offered, takers, overlap):
            actions.append(TakeOver(taker.identity, bundle))
        elif taker.held is not None and taker.held.bundle != bundle:
            actions.append(Publish(taker.identity, bundle))
    return tuple(actions)


def changing(takers: Iterable[Taker]) -> bool:
    """Say whether CAs are being replaced: not everybody trusts, or comes with, the same."""
    return len({one.bundle for taker in takers for one in (taker.offered, taker.held) if one is not None}) > 1


def _bundle(now: datetime, takers: Sequence[Taker], overlap: timedelta) -> frozenset[str]:
    """Return whom everybody should trust: who vouches for anything, and who did until nobody shows it any more (X2)."""
    held = [taker.held for taker in takers if taker.held is not None]
    needed = frozenset[str]().union(
        *(taker.offered.bundle for taker in takers if taker.offered is not None), *(one.vouching for one in held))
    trusted = frozenset[str]().union(*(one.bundle for one in held))
    if trusted <= needed:
        return needed
    loaded = all(taker.loaded for taker in takers if taker.held is not None)
    last = max(one.created for one in held)
    return needed if loaded and now >= last + overlap else needed | trusted


def _may_show(
    now: datetime, taker: Taker, offered: Shown, takers: Sequence[Taker], overlap: timedelta,
) -> bool:
    """Say whether a holder may show what it is offered: once it does, everybody must trust it."""
    held = taker.held
    if held is None or held.expires <= now:
        return True  # it has nothing that anybody would trust, and so nothing to lose
    if held.id == offered.id:
        return False
    if held.vouching & offered.vouching:
        return True  # who trusts the one trusts the other
    # Others have copies that nobody reports on; but a certificate that ends soon does not wait for them.
    soon = min(offered.created + overlap, offered.created + (held.expires - offered.created) / 2)
    return now >= soon and all(
        other.loaded and bool(other.held.bundle & offered.vouching) for other in takers if other.held is not None)
