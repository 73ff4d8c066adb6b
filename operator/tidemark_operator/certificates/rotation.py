"""What to create, issue, publish and drop next, from what is stored and loaded: `plan(now, stored, policy) -> actions`.

Pure; rules X2 to X5.  Every plan is safe to carry out in any order, in part, or twice; then one plans again.
Where somebody else issued before, his CAs are kept as one whose key is not ours, and replaced as any other is.
Stays out: making certificates (`authority`), carrying out (`keeper`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemark_wire.identity import Identity

from .subject import Subject


@dataclass(frozen=True, slots=True)
class Policy:
    """How long things last.  `overlap` is how long at least two CAs are trusted, for copies that nobody reports on."""

    certificate: timedelta = timedelta(days=90)
    renew_before: timedelta = timedelta(days=30)
    authority: timedelta = timedelta(days=365)
    overlap: timedelta = timedelta(days=1)

    def renew_at(self, created: datetime, expires: datetime) -> datetime:
        """Return when a certificate is replaced; one that a CA's end cut short keeps the same part of its life (X5)."""
        return expires - (expires - created) * (self.renew_before / self.certificate)

    def replace_at(self, authority: StoredAuthority) -> datetime:
        """Return when a CA is replaced (X5)."""
        return authority.expires - min(self.certificate, self.authority / 2)


@dataclass(frozen=True, slots=True)
class StoredAuthority:
    """A CA; `retiring` when somebody asked for its replacement, `elsewhere` when its key is: then it cannot issue."""

    id: str
    created: datetime
    expires: datetime
    retiring: bool = False
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """Whoever has, or is to have, a certificate.

    `issuer`, `issued`, `created` and `expires` are of the files, None where there are none yet.  `loaded` is False
    while its process says that it works with older files; one that runs not, or cannot say, has loaded them (X4).
    `stranger` is one whose certificate others trust, though it is of no CA that is kept.
    """

    wanted: Subject
    issued: Subject | None = None
    issuer: str | None = None
    created: datetime | None = None
    expires: datetime | None = None
    bundle: frozenset[str] = frozenset()
    loaded: bool = True
    stranger: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """All there is; authorities oldest first."""

    authorities: tuple[StoredAuthority, ...] = ()
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateAuthority:
    """Make a new CA; nobody uses it yet."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Keep the CAs that these trust, and that are not kept yet, as one: who issued them was somebody else."""

    holders: tuple[Identity, ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Give a holder these CAs to trust, beside the certificate it has."""

    holder: Identity
    bundle: frozenset[str]


@dataclass(frozen=True, slots=True)
class Issue:
    """Give a holder a new certificate of this CA, and these CAs to trust."""

    subject: Subject
    authority: str
    bundle: frozenset[str]


@dataclass(frozen=True, slots=True)
class DropAuthority:
    """Forget a CA and its key."""

    authority: str


@dataclass(frozen=True, slots=True)
class DropHolder:
    """Forget what somebody held who shall hold nothing any more; `plan` plans none, it is told of those who shall."""

    holder: Identity


Action = CreateAuthority | Adopt | Publish | Issue | DropAuthority | DropHolder


def plan(now: datetime, stored: Stored, policy: Policy) -> tuple[Action, ...]:
    """Return the next actions; none when everything is as it should be, or has to wait."""
    if first := _prepare(now, stored, policy):
        return first
    old, new = stored.authorities[0], stored.authorities[-1]
    everything = frozenset(authority.id for authority in stored.authorities)
    if old is new:
        actions = _bring(now, stored.holders, policy, new.id, everything)
        due = new.retiring or now >= policy.replace_at(new)
        return (*actions, CreateAuthority()) if due else actions
    holders = [holder for holder in stored.holders if holder.issuer is not None]
    elsewhere = _elsewhere(stored)
    overlapped = now >= _overlapped_at(now, new, holders, policy, elsewhere)
    dead = now >= old.expires  # nothing is left to be careful about
    if not dead and not _everybody_trusts(holders, everything, overlapped):
        if elsewhere:
            return _tell(now, stored.holders, policy, new.id, everything)
        return _bring(now, stored.holders, policy, old.id, everything)
    last = max((holder.created for holder in holders if holder.created is not None), default=new.created)
    shown = any(holder.issuer != new.id for holder in holders)  # all have loaded their files, as seen above
    if not dead and (shown or now < last + policy.overlap):
        return _bring(now, stored.holders, policy, new.id, everything, only_of=new.id)
    return (DropAuthority(old.id),)


def _prepare(now: datetime, stored: Stored, policy: Policy) -> tuple[Action, ...]:
    """Return what has to be done before there is a CA to issue with, and none besides that nobody needs."""
    strangers = tuple(
        holder.wanted.identity for holder in stored.holders
        if holder.stranger and holder.expires is not None and holder.expires > now)
    if strangers:
        return (Adopt(strangers),)
    if not stored.authorities:
        return (CreateAuthority(),)
    new = stored.authorities[-1]
    trusted = frozenset[str]().union(*(holder.bundle for holder in stored.holders))
    used = trusted | {holder.issuer for holder in stored.holders}
    useless = tuple(
        DropAuthority(authority.id) for authority in stored.authorities[:-1]
        if authority.id not in used and (authority.elsewhere or new.elsewhere))
    if new.elsewhere:
        return (*useless, CreateAuthority())
    if useless:
        return useless
    old_at = new.created + policy.overlap if policy.overlap else policy.replace_at(new)
    if now >= old_at and new.id not in trusted and used & _elsewhere(stored):
        return (DropAuthority(new.id), CreateAuthority())  # it is of an earlier move: copies know nothing of it
    return ()


def _elsewhere(stored: Stored) -> frozenset[str]:
    return frozenset(authority.id for authority in stored.authorities if authority.elsewhere)


def _overlapped_at(
    now: datetime, new: StoredAuthority, holders: list[Holder], policy: Policy, elsewhere: frozenset[str],
) -> datetime:
    """Return when copies know the new CA; what cannot be renewed, and ends soon, does not wait for them."""
    soonest = min((
        holder.expires for holder in holders
        if holder.issuer in elsewhere and holder.expires is not None and holder.expires > now), default=None)
    overlapped = new.created + policy.overlap
    return overlapped if soonest is None else min(overlapped, new.created + (soonest - new.created) / 2)


def _everybody_trusts(holders: list[Holder], everything: frozenset[str], overlapped: bool) -> bool:
    """Say whether certificates of the new CA may be shown (X2); once one is, there is no way back."""
    return overlapped and all(holder.bundle >= everything and holder.loaded for holder in holders)


def _bring(
    now: datetime, holders: tuple[Holder, ...], policy: Policy, authority: str, bundle: frozenset[str],
    only_of: str | None = None,
) -> tuple[Action, ...]:
    """Give every holder what it lacks: a certificate that is of a CA in `bundle` (or `only_of`), and the bundle."""
    accepted = bundle if only_of is None else {only_of}
    actions: list[Action] = []
    for holder in holders:
        if holder.issuer not in accepted or holder.issued != holder.wanted or _is_due(now, holder, policy):
            actions.append(Issue(holder.wanted, authority, bundle))
        elif holder.bundle != bundle:
            actions.append(Publish(holder.wanted.identity, bundle))
    return tuple(actions)


def _is_due(now: datetime, holder: Holder, policy: Policy) -> bool:
    return (
        holder.created is None or holder.expires is None or now >= policy.renew_at(holder.created, holder.expires))


def _tell(
    now: datetime, holders: tuple[Holder, ...], policy: Policy, authority: str, bundle: frozenset[str],
) -> tuple[Action, ...]:
    """Give every holder the bundle, while no old CA can issue, and not everybody trusts the new one.

    A new certificate gets only who has none that anybody would trust, or one of the new CA already.
    """
    actions: list[Action] = []
    for holder in holders:
        lost = holder.issuer not in bundle or holder.expires is None or holder.expires <= now
        if lost or (holder.issuer == authority and (holder.issued != holder.wanted or _is_due(now, holder, policy))):
            actions.append(Issue(holder.wanted, authority, bundle))
        elif holder.bundle != bundle:
            actions.append(Publish(holder.wanted.identity, bundle))
    return tuple(actions)
