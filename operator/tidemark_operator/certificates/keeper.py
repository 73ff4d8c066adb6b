"""Keeps the certificates of a cluster: plans with what is stored and loaded, carries the plan out, looks again.

They are of the cluster's own CA, or taken over from somebody else who issues, as the store says.
Stays out: what comes next (`rotation`, `takeover`), who reports what (the operator's service).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tidemark_wire.identity import Identity
from tidemark_wire.tls import fingerprint_of

from ..resources.conditions import ConditionReason
from . import takeover
from .authority import (
    Authority,
    InvalidCertificate,
    Trusted,
    bundle_of,
    create_authority,
    hash_of,
    ids_in,
    issue,
    read_bundle,
    read_others,
    vouching,
)
from .rotation import (
    Action,
    Adopt,
    CreateAuthority,
    DropAuthority,
    DropHolder,
    Holder,
    Issue,
    Policy,
    Publish,
    Stored,
    StoredAuthority,
    plan,
)
from .store import CertificateStore, Held
from .subject import Subject
from .takeover import Shown, TakeOver, Taker

Step = Action | TakeOver


@dataclass(frozen=True, slots=True)
class Validity:
    """What is shown of the certificates."""

    authority_expires: datetime
    earliest_expires: datetime
    overlapping: bool

    def reason(self, now: datetime, policy: Policy) -> ConditionReason:
        """Return ISSUED, EXPIRED, or EXPIRING_SOON for what should have been replaced long ago."""
        first = min(self.authority_expires, self.earliest_expires)
        if now >= first:
            return ConditionReason.EXPIRED
        soon = now >= first - policy.renew_before / 2
        return ConditionReason.EXPIRING_SOON if soon else ConditionReason.ISSUED


def now_utc() -> datetime:
    """Return the time with which certificates are made and judged."""
    return datetime.now(UTC)


def planned(
    store: CertificateStore, policy: Policy, now: datetime, *, wanted: Iterable[Subject] = (),
    reports: Mapping[Identity, str] | None = None, only_wanted: bool = False,
) -> tuple[Step, ...]:
    """Return what `keep` would do."""
    with store.locked():
        authorities = store.authorities()
        held = store.holders()
        return _plan(store, policy, now, authorities, held, wanted, reports, only_wanted)


def keep(
    store: CertificateStore, policy: Policy, now: datetime, *, wanted: Iterable[Subject] = (),
    reports: Mapping[Identity, str] | None = None, only_wanted: bool = False,
) -> tuple[Step, ...]:
    """Take the next steps and return them; none when nothing is to be done now.

    `wanted` are holders that shall exist, with the names they are dialed by; those that exist go on with theirs, or
    with `only_wanted` lose them.
    `reports` holds the fingerprint of what a running process has loaded, empty for one that does not say (X4); who is
    not in it does not run, or cannot say.  Whoever has asked nobody gives None: then no rotation goes on.
    """
    with store.locked():
        authorities = {authority.id: authority for authority in store.authorities()}
        held, offers = store.holders(), store.offers()
        actions = _plan(store, policy, now, authorities.values(), held, wanted, reports, only_wanted)
        trusted: Mapping[str, Authority | Trusted] = authorities if offers is None else {
            name: one for each in (*held.values(), *offers.values()) for name, one in read_bundle(each.bundle).items()}
        for action in actions:
            _carry_out(store, policy, now, action, authorities, trusted, held, offers or {})
    return actions


def ensure(store: CertificateStore, policy: Policy, now: datetime, subjects: Iterable[Subject]) -> None:
    """Make sure that these hold certificates; the CA is made when there is none yet."""
    wanted = list(subjects)
    while any(isinstance(action, CreateAuthority) for action in keep(store, policy, now, wanted=wanted)):
        pass  # the next step uses the new CA


def request_rotation(store: CertificateStore) -> str:
    """Ask for the replacement of the CA, and with it of every certificate; return the id of the CA that goes."""
    with store.locked():
        authorities = store.authorities()
        if not authorities:
            raise InvalidCertificate("there is no CA to be replaced")
        store.retire(authorities[-1].id)
        return authorities[-1].id


def rotating(store: CertificateStore) -> bool:
    """Say whether a CA is being replaced."""
    offers = store.offers()
    if offers is not None:
        held = store.holders()
        return takeover.changing(_takers(held.keys() | offers.keys(), held, offers, None))
    return len(store.authorities()) > 1 or bool(store.retiring())


def rotated(store: CertificateStore, retired: str) -> bool:
    """Say whether a CA is gone and nobody trusts it or shows a certificate of it any more."""
    with store.locked():
        left = {authority.id for authority in store.authorities()}
        holders = store.holders().values()
        return retired not in left and all(
            held.facts.issuer != retired and retired not in held.trusts for held in holders)


def validity(store: CertificateStore) -> Validity | None:
    """Return how long everything lasts, None while there is nothing."""
    holders = store.holders()
    ends = [held.facts.expires for held in holders.values()]
    if store.offers() is not None:
        ends_of_authorities = [
            read_bundle(held.bundle)[one].expires
            for held in holders.values() for one in vouching(held.leaf.certificate, held.bundle)]
        return Validity(min(ends_of_authorities), min(ends), rotating(store)) if ends_of_authorities else None
    authorities = store.authorities()
    if not authorities:
        return None
    return Validity(
        authorities[-1].expires, min(ends, default=authorities[-1].expires), rotating(store))


def answers(held: Held, subject: Subject | None) -> bool:
    """Say whether a certificate has the names and addresses that its holder is dialed by."""
    has = held.facts.subject
    return subject is None or (set(subject.dns) <= set(has.dns) and set(subject.ips) <= set(has.ips))


def _plan(
    store: CertificateStore, policy: Policy, now: datetime, authorities: Collection[Authority],
    held: Mapping[Identity, Held], wanted: Iterable[Subject], reports: Mapping[Identity, str] | None,
    only_wanted: bool,
) -> tuple[Step, ...]:
    shall = {subject.identity: subject for subject in wanted}
    gone = sorted(held.keys() - shall.keys()) if only_wanted else []
    kept = {identity: one for identity, one in held.items() if identity not in gone}
    dropped = (DropHolder(identity) for identity in gone)
    offers = store.offers()
    if offers is not None:
        usable = {identity: one for identity, one in offers.items() if answers(one, shall.get(identity))}
        takers = _takers(kept.keys() | shall.keys(), kept, usable, reports)
        return (*dropped, *takeover.plan(now, takers, policy.overlap))
    strangers = _strangers(kept, authorities) if store.adopts else frozenset[Identity]()
    stored = _stored(authorities, store.retiring(), kept, shall.values(), reports, strangers)
    return (*dropped, *plan(now, stored, policy))


def _stored(
    authorities: Collection[Authority], retiring: frozenset[str], held: Mapping[Identity, Held],
    wanted: Iterable[Subject], reports: Mapping[Identity, str] | None, strangers: frozenset[Identity],
) -> Stored:
    subjects = {identity: one.facts.subject for identity, one in held.items()}
    subjects |= {subject.identity: subject for subject in wanted}
    others = {authority.id: ids_in(authority.certificate) for authority in authorities if authority.elsewhere}
    return Stored(
        tuple(
            StoredAuthority(
                authority.id, authority.created, authority.expires, authority.id in retiring, authority.elsewhere)
            for authority in authorities),
        tuple(
            _holder(
                subject, held.get(identity), "" if reports is None else reports.get(identity), authorities,
                others, identity in strangers)
            for identity, subject in subjects.items()),
    )


def _holder(
    subject: Subject, held: Held | None, report: str | None, authorities: Collection[Authority],
    others: Mapping[str, frozenset[str]], stranger: bool,
) -> Holder:
    if held is None:
        return Holder(subject)
    facts, trusts = held.facts, held.trusts
    known = {name for name, ids in others.items() if ids <= trusts}
    bundle = frozenset(known) | trusts.difference(*(others[name] for name in known))
    return Holder(
        subject, facts.subject, _issuer(held, authorities), facts.created, facts.expires, bundle,
        _has_loaded(held, report), stranger)


def _issuer(held: Held, authorities: Collection[Authority]) -> str:
    """Return which of the CAs vouches for a certificate, else the key that it names."""
    if any(held.facts.issuer == authority.id for authority in authorities):
        return held.facts.issuer
    return next(
        (authority.id for authority in authorities if _vouching(held, authority.certificate)),
        held.facts.issuer)


def _strangers(held: Mapping[Identity, Held], authorities: Collection[Authority]) -> frozenset[Identity]:
    """Return whose certificates are of no CA that is kept, though others trust them: somebody else has issued them."""
    kept = {authority.id for authority in authorities}
    unknown = {identity: one for identity, one in held.items() if _issuer(one, authorities) not in kept}
    if not unknown:
        return frozenset()
    return frozenset(
        identity for identity, one in unknown.items()
        if _vouching(one, one.bundle) and any(
            _vouching(one, other.bundle) for another, other in held.items() if another != identity))


def _vouching(held: Held, bundle: bytes) -> frozenset[str]:
    try:
        return vouching(held.leaf.certificate, bundle)
    except InvalidCertificate:
        return frozenset()  # it is written anew


def _takers(
    identities: Iterable[Identity], held: Mapping[Identity, Held], offers: Mapping[Identity, Held],
    reports: Mapping[Identity, str] | None,
) -> list[Taker]:
    return [
        _taker(identity, held.get(identity), offers.get(identity), "" if reports is None else reports.get(identity))
        for identity in sorted(identities)]


def _taker(identity: Identity, held: Held | None, offered: Held | None, report: str | None) -> Taker:
    return Taker(identity, _shown(offered), _shown(held), held is None or _has_loaded(held, report))


def _shown(held: Held | None) -> Shown | None:
    if held is None:
        return None
    return Shown(
        hash_of(held.leaf.certificate), vouching(held.leaf.certificate, held.bundle),
        frozenset(read_bundle(held.bundle)), held.facts.created, held.facts.expires)


def _has_loaded(held: Held, report: str | None) -> bool:
    return report is None or report == fingerprint_of(held.leaf.certificate, held.bundle)


def _carry_out(
    store: CertificateStore, policy: Policy, now: datetime, action: Step, authorities: Mapping[str, Authority],
    trusted: Mapping[str, Authority | Trusted], held: Mapping[Identity, Held], offers: Mapping[Identity, Held],
) -> None:
    match action:
        case CreateAuthority():
            store.put_authority(create_authority(store.cluster, now, policy.authority))
        case Adopt(identities):
            ours = {hash_of(authority.certificate) for authority in authorities.values() if not authority.elsewhere}
            found = {name: one for each in identities for name, one in read_bundle(held[each].bundle).items()}
            store.put_authority(read_others(bundle_of(found[name] for name in sorted(found.keys() - ours))))
        case Issue(subject, authority, bundle):
            leaf = issue(authorities[authority], subject, now, policy.certificate)
            store.put_holder(subject.identity, leaf, bundle_of(trusted[one] for one in sorted(bundle)))
        case Publish(identity, bundle):
            store.put_holder(identity, held[identity].leaf, bundle_of(trusted[one] for one in sorted(bundle)))
        case TakeOver(identity, bundle):
            store.put_holder(identity, offers[identity].leaf, bundle_of(trusted[one] for one in sorted(bundle)))
        case DropAuthority(authority):
            store.drop_authority(authority)
        case DropHolder(identity):
            store.drop_holder(identity)
