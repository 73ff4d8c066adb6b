"""Certificates that somebody else issues: what is taken over and when, whatever he does with his CA."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_operator.certificates import rotation
from tidemark_operator.certificates.rotation import (
    Action,
    Adopt,
    CreateAuthority,
    DropAuthority,
    Holder,
    Issue,
    Policy,
    Publish,
    Stored,
    StoredAuthority,
)
from tidemark_operator.certificates.subject import Subject
from tidemark_operator.certificates.takeover import Shown, TakeOver, Taker, changing, plan
from tidemark_wire.identity import Identity, Kind

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)
DAY = timedelta(days=1)
A, B, C = (Identity("prod", Kind.NODE, f"prod-{number}") for number in (1, 2, 3))


def shown(leaf: str, authority: str, *bundle: str, created: datetime = NOW, days: int = 90) -> Shown:
    """A certificate of `authority` with that, or `bundle`, beside it."""
    return Shown(leaf, frozenset({authority}), frozenset(bundle or {authority}), created, created + days * DAY)


def both(identity: Identity, one: Shown, *, loaded: bool = True) -> Taker:
    return Taker(identity, one, one, loaded)


def test_what_is_offered_first_is_taken() -> None:
    assert plan(NOW, [Taker(A, shown("a", "x")), Taker(B)], DAY) == (TakeOver(A, frozenset("x")),)


def test_nothing_is_done_while_everything_is_as_it_should_be() -> None:
    takers = [both(A, shown("a", "x")), both(B, shown("b", "x"))]
    assert plan(NOW + 80 * DAY, takers, DAY) == ()
    assert not changing(takers)


def test_a_renewed_certificate_of_the_same_ca_is_taken_at_once() -> None:
    renewed = shown("a2", "x", created=NOW + 60 * DAY)
    takers = [Taker(A, renewed, shown("a", "x"), loaded=False), both(B, shown("b", "x"))]
    assert plan(NOW + 60 * DAY, takers, DAY) == (TakeOver(A, frozenset("x")),)


def test_what_has_expired_is_not_taken() -> None:
    assert plan(NOW + 91 * DAY, [Taker(A, shown("a", "x"))], DAY) == ()


def test_of_a_new_ca_everybody_hears_before_anybody_shows_its_certificate() -> None:
    new = shown("a2", "y", created=NOW + DAY)
    takers = [Taker(A, new, shown("a", "x")), both(B, shown("b", "x"))]
    assert changing(takers)
    together = frozenset("xy")
    assert plan(NOW + DAY, takers, 0 * DAY) == (Publish(A, together), Publish(B, together))
    old = {A: shown("a", "x", "x", "y"), B: shown("b", "x", "x", "y")}
    for loaded in (False, True):
        takers = [Taker(A, new, old[A]), Taker(B, shown("b", "x"), old[B], loaded)]
        assert plan(NOW + DAY, takers, 0 * DAY) == ((TakeOver(A, together),) if loaded else ())
    assert plan(NOW + DAY, takers, DAY) == (), "others have copies, and a day to renew them"
    assert plan(NOW + 2 * DAY, takers, DAY) == (TakeOver(A, together),)
    assert plan(NOW + 90 * DAY, takers, 300 * DAY) == (TakeOver(A, together), ), "one that has ended does not wait"


def test_an_old_ca_goes_when_nobody_shows_its_certificate_any_more() -> None:
    now = NOW + 30 * DAY
    new = {each: shown(each.name, "y", created=now) for each in (A, B)}
    takers = [Taker(each, one, replace(one, bundle=frozenset("xy"))) for each, one in new.items()]
    drop = (Publish(A, frozenset("y")), Publish(B, frozenset("y")))
    assert plan(now, takers, 0 * DAY) == drop
    assert plan(now, [takers[0], replace(takers[1], loaded=False)], 0 * DAY) == ()
    assert plan(now, takers, DAY) == ()
    assert plan(now + DAY, takers, DAY) == drop
    still = Taker(B, shown("b", "x"), shown("b", "x", "x", "y"))
    assert plan(now + DAY, [takers[0], still], 0 * DAY) == ()


def test_what_is_not_offered_any_more_is_kept() -> None:
    takers = [Taker(A, None, shown("a", "x")), both(B, shown("b", "x"))]
    assert plan(NOW, takers, DAY) == ()
    assert plan(NOW, [Taker(each.identity, None, each.held) for each in takers], DAY) == ()


# --- whoever issues does what he likes ------------------------------------------------------------------------------


@dataclass
class World:
    """Holders with files, processes that load them when they like, and an issuer; any two processes can always talk."""

    now: datetime = NOW
    authority: str = "x"
    leaves: int = 0
    offered: dict[Identity, Shown] = field(default_factory=dict)
    held: dict[Identity, Shown] = field(default_factory=dict)
    loaded: dict[Identity, Shown] = field(default_factory=dict)
    overlap: timedelta = timedelta(0)

    def issue(self, identity: Identity) -> None:
        self.leaves += 1
        self.offered[identity] = shown(f"{self.leaves}", self.authority, created=self.now)

    def look(self, part: int) -> int:
        """One pass of an operator that carries its plan out in part."""
        takers = [
            Taker(each, self.offered.get(each), self.held.get(each),
                  each not in self.held or self.loaded.get(each) == self.held[each])
            for each in sorted(self.offered.keys() | self.held.keys())]
        actions = plan(self.now, takers, self.overlap)
        for action in actions[:part]:
            leaf = self.offered[action.holder] if isinstance(action, TakeOver) else self.held[action.holder]
            self.held[action.holder] = replace(leaf, bundle=action.bundle)
        return len(actions)

    def load(self, identity: Identity) -> None:
        if identity in self.held:
            self.loaded[identity] = self.held[identity]

    def check(self) -> None:
        for one in self.loaded.values():
            for other in self.loaded.values():
                assert one.vouching & other.bundle, f"{one} is turned down by {other}"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_the_issuer_does_any_two_processes_can_talk_at_every_moment(data: Any) -> None:
    world = World()
    everybody = (A, B, C)
    for each in everybody:
        world.issue(each)
    world.look(9)
    for each in everybody:
        world.load(each)
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["issue", "issue", "ca", "look", "look", "look", "load", "load", "withdraw"])):
            case "issue":
                world.issue(data.draw(st.sampled_from(everybody)))
            case "ca":
                world.authority = data.draw(st.sampled_from("xyz"))
            case "look":
                world.look(data.draw(st.integers(0, 3)))
            case "load":
                world.load(data.draw(st.sampled_from(everybody)))
            case "withdraw":
                world.offered.pop(data.draw(st.sampled_from(everybody)), None)
        world.check()
    for each in everybody:
        world.issue(each)
    for _ in range(20):  # and it comes to an end
        world.look(9)
        for each in everybody:
            world.load(each)
        world.check()
    assert world.look(0) == 0
    assert {one.id for one in world.held.values()} == {one.id for one in world.offered.values()}
    assert {one.bundle for one in world.held.values()} == {frozenset(world.authority)}


@pytest.mark.parametrize("days", [1, 2, 90])
def test_a_certificate_that_ends_soon_does_not_wait_for_copies(days: int) -> None:
    old, new = shown("a", "x", "x", "y", days=days), shown("a2", "y")
    takers = [Taker(A, new, old)]
    waits = min(timedelta(days=days) / 2, DAY)
    assert plan(NOW + waits - timedelta(minutes=1), takers, DAY) == ()
    assert plan(NOW + waits, takers, DAY) == (TakeOver(A, frozenset("xy")),)


# --- and so does whoever says who issues ----------------------------------------------------------------------------

POLICY = replace(Policy(), overlap=timedelta(0))


@dataclass
class Moving(World):
    """The operator issues itself, or somebody else does; that may be changed at any moment."""

    elsewhere: bool = True
    authorities: list[StoredAuthority] = field(default_factory=list)
    members: dict[str, frozenset[str]] = field(default_factory=dict)
    """What each of `authorities` consists of: those of somebody else are kept as one."""

    def keep(self, data: Any, part: int) -> int:
        """One pass of an operator, which carries its plan out in part."""
        if self.elsewhere:
            return self.look(part)
        actions = rotation.plan(self.now, self.stored(), POLICY)
        for action in data.draw(st.permutations(actions))[:part]:
            self.carry_out(action)
        return len(actions)

    def stored(self) -> Stored:
        return Stored(tuple(self.authorities), tuple(self.holder(each) for each in self.held))

    def holder(self, identity: Identity) -> Holder:
        """As the keeper sees it."""
        one = self.held[identity]
        (authority,) = one.vouching
        kept = {each.id: self.members[each.id] for each in self.authorities}
        issuer = next((name for name, members in kept.items() if authority in members), authority)
        known = {name for name, members in kept.items() if members <= one.bundle}
        bundle = one.bundle.difference(*(kept[name] for name in known)) | known
        stranger = issuer not in kept and any(
            authority in other.bundle for who, other in self.held.items() if who != identity)
        me = Subject(identity)
        return Holder(
            me, me, issuer, one.created, one.expires, bundle, self.loaded.get(identity) == one, stranger)

    def carry_out(self, action: Action) -> None:
        match action:
            case CreateAuthority():
                self.add(f"own{len(self.members)}", frozenset({f"own{len(self.members)}"}))
            case Adopt(holders):
                kept = {each.id for each in self.authorities}
                others = frozenset[str]().union(*(self.held[each].bundle for each in holders)) - kept
                assert others
                self.add(f"others{len(self.members)}", others, elsewhere=True)
            case Publish(identity, bundle):
                self.held[identity] = replace(self.held[identity], bundle=self.trusted(bundle))
            case Issue(subject, authority, bundle):
                assert authority.startswith("own"), "there is no other key"
                self.leaves += 1
                self.held[subject.identity] = replace(
                    shown(f"{self.leaves}", authority, created=self.now), bundle=self.trusted(bundle))
            case DropAuthority(authority):
                self.authorities = [each for each in self.authorities if each.id != authority]

    def add(self, name: str, members: frozenset[str], *, elsewhere: bool = False) -> None:
        self.members[name] = members
        self.authorities.append(StoredAuthority(name, self.now, self.now + POLICY.authority, elsewhere=elsewhere))

    def trusted(self, names: frozenset[str]) -> frozenset[str]:
        return frozenset[str]().union(*(self.members[name] for name in names))

    def come_to_rest(self, data: Any) -> None:
        for _ in range(30):
            self.keep(data, 99)
            for each in self.held:
                self.load(each)
            self.check()
        assert self.keep(data, 0) == 0


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whoever_issues_next_any_two_processes_can_talk_at_every_moment(data: Any) -> None:
    world = Moving(elsewhere=data.draw(st.booleans()))
    everybody = (A, B, C)
    if world.elsewhere:
        for each in everybody:
            world.issue(each)
    else:
        world.add("own0", frozenset({"own0"}))
        world.held = {each: shown(f"first {each.name}", "own0") for each in everybody}
    world.come_to_rest(data)
    steps = ["move", "issue", "issue", "ca", "rotate", "withdraw", *["keep"] * 4, *["load"] * 3, *["round"] * 3]
    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(steps)):
            case "move":
                world.elsewhere = not world.elsewhere
            case "issue":
                world.issue(data.draw(st.sampled_from(everybody)))
            case "ca":
                world.authority = data.draw(st.sampled_from("xyz"))
            case "keep":
                world.keep(data, data.draw(st.sampled_from([0, 1, 2, 9])))
            case "load":
                world.load(data.draw(st.sampled_from(everybody)))
            case "round":
                world.keep(data, 9)
                for each in everybody:
                    world.load(each)
            case "rotate":
                world.authorities[-1:] = [replace(each, retiring=True) for each in world.authorities[-1:]]
            case "withdraw":
                world.offered.pop(data.draw(st.sampled_from(everybody)), None)
        world.check()
    for each in everybody:
        world.issue(each)
    world.come_to_rest(data)
    (trusted,) = {one.bundle for one in world.held.values()}
    assert {one.vouching for one in world.held.values()} == {trusted}
    if world.elsewhere:
        assert trusted == {world.authority}
    else:
        assert [trusted] == [{each.id} for each in world.authorities], "nothing of anybody else is left"
