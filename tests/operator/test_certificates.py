"""The CA, what it issues, where it is kept, and its replacement while everybody goes on talking."""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_operator.certificates.authority import (
    InvalidCertificate,
    create_authority,
    issue,
    read_authority,
    read_leaf,
)
from tidemark_operator.certificates.files import CertificateFiles
from tidemark_operator.certificates.keeper import ensure, keep, request_rotation, rotated, validity
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
    plan,
)
from tidemark_operator.certificates.subject import Subject
from tidemark_wire.identity import Identity, Kind
from tidemark_wire.tls import TlsSettings, read_material

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)
DAY = timedelta(days=1)
POLICY = Policy()
NO_OVERLAP = replace(POLICY, overlap=timedelta(0))


def node(name: str) -> Identity:
    return Identity("prod", Kind.NODE, name)


def client(name: str) -> Identity:
    return Identity("prod", Kind.CLIENT, name)


NODE_1 = Subject(node("prod-1"), ("prod-1", "localhost"), ("127.0.0.1",))
ALICE = Subject(client("alice"))

# --- what is issued ---------------------------------------------------------------------------------------------------


def test_a_certificate_names_who_it_is_for_and_where_it_is_dialed() -> None:
    """Rule X1."""
    authority = create_authority("prod", NOW, 365 * DAY)
    facts = read_leaf(issue(authority, NODE_1, NOW, 90 * DAY).certificate)
    assert NODE_1 == facts.subject
    assert (authority.id, NOW, NOW + 90 * DAY) == (facts.issuer, facts.created, facts.expires)


@pytest.mark.parametrize(("subject", "serves"), [
    (NODE_1, True), (Subject(Identity("prod", Kind.OPERATOR, "operator")), True),
    (ALICE, False), (Subject(Identity("prod", Kind.ADMIN, "root"), ("prod",)), False),
])
def test_only_nodes_and_operators_can_serve(subject: Subject, serves: bool) -> None:
    leaf = issue(create_authority("prod", NOW, 365 * DAY), subject, NOW, DAY)
    read = x509.load_pem_x509_certificate(leaf.certificate)
    usages = read.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert serves is (ExtendedKeyUsageOID.SERVER_AUTH in usages)
    assert ExtendedKeyUsageOID.CLIENT_AUTH in usages


def test_a_certificate_does_not_outlive_its_ca() -> None:
    authority = create_authority("prod", NOW, 10 * DAY)
    assert authority.expires == read_leaf(issue(authority, ALICE, NOW, 90 * DAY).certificate).expires


def test_a_ca_reads_back_as_it_was_made_and_shows_no_key() -> None:
    authority = create_authority("prod", NOW, 365 * DAY)
    assert authority == read_authority(authority.certificate, authority.key)
    assert "PRIVATE" not in repr(authority)
    assert "PRIVATE" not in repr(issue(authority, ALICE, NOW, DAY))


def test_what_is_no_certificate_of_ours_is_refused() -> None:
    with pytest.raises(InvalidCertificate, match="cannot be read"):
        read_leaf(b"nothing")
    with pytest.raises(InvalidCertificate, match="lacks"):
        read_leaf(create_authority("prod", NOW, DAY).certificate)


# --- what comes next --------------------------------------------------------------------------------------------------


def held(subject: Subject, issuer: str, created: datetime, *bundle: str, loaded: bool = True) -> Holder:
    return Holder(subject, subject, issuer, created, created + POLICY.certificate, frozenset(bundle), loaded)


def authority(name: str, created: datetime = NOW, *, retiring: bool = False) -> StoredAuthority:
    return StoredAuthority(name, created, created + POLICY.authority, retiring)


def test_the_first_step_is_a_ca_and_the_second_the_certificates() -> None:
    assert (CreateAuthority(),) == plan(NOW, Stored(holders=(Holder(ALICE),)), POLICY)
    assert (Issue(ALICE, "a", frozenset("a")),) == plan(NOW, Stored((authority("a"),), (Holder(ALICE),)), POLICY)


def test_nothing_is_done_while_everything_is_as_it_should_be() -> None:
    stored = Stored((authority("a"),), (held(NODE_1, "a", NOW, "a"), held(ALICE, "a", NOW, "a")))
    assert () == plan(NOW + 59 * DAY, stored, POLICY)


def test_a_certificate_is_renewed_before_its_end() -> None:
    """Rule X5."""
    stored = Stored((authority("a"),), (held(NODE_1, "a", NOW, "a"), held(ALICE, "a", NOW + DAY, "a")))
    assert (Issue(NODE_1, "a", frozenset("a")),) == plan(NOW + 60 * DAY, stored, POLICY)


def test_a_certificate_with_other_names_than_wanted_is_issued_anew() -> None:
    moved = replace(NODE_1, ips=("10.0.0.1",))
    stored = Stored((authority("a"),), (replace(held(NODE_1, "a", NOW, "a"), wanted=moved),))
    assert (Issue(moved, "a", frozenset("a")),) == plan(NOW, stored, POLICY)


def test_a_ca_is_replaced_while_certificates_of_full_length_still_fit_into_its_rest() -> None:
    stored = Stored((authority("a"),))
    assert () == plan(NOW + 274 * DAY, stored, POLICY)
    assert (CreateAuthority(),) == plan(NOW + 275 * DAY, stored, POLICY)


def test_both_cas_are_published_before_anything_is_issued_by_the_new_one() -> None:
    """Rule X2."""
    cas, both = (authority("a"), authority("b", NOW)), frozenset("ab")
    nobody = Stored(cas, (held(NODE_1, "a", NOW, "a"), held(ALICE, "a", NOW, "a")))
    assert (Publish(NODE_1.identity, both), Publish(ALICE.identity, both)) == plan(NOW, nobody, NO_OVERLAP)
    lagging = Stored(cas, (held(NODE_1, "a", NOW, "a", "b", loaded=False), held(ALICE, "a", NOW, "a", "b")))
    assert () == plan(NOW, lagging, NO_OVERLAP)
    everybody = Stored(cas, (held(NODE_1, "a", NOW, "a", "b"), held(ALICE, "a", NOW, "a", "b")))
    assert (Issue(NODE_1, "b", both), Issue(ALICE, "b", both)) == plan(NOW, everybody, NO_OVERLAP)


def test_the_overlap_is_waited_for_before_the_new_ca_issues_and_before_the_old_one_goes() -> None:
    cas = (authority("a", NOW - DAY), authority("b", NOW))
    spread = Stored(cas, (held(ALICE, "a", NOW - DAY, "a", "b"),))
    assert () == plan(NOW + DAY / 2, spread, POLICY)
    assert (Issue(ALICE, "b", frozenset("ab")),) == plan(NOW + DAY, spread, POLICY)
    shown = Stored(cas, (held(ALICE, "b", NOW + DAY, "a", "b"),))
    assert () == plan(NOW + DAY * 3 / 2, shown, POLICY)
    assert (DropAuthority("a"),) == plan(NOW + 2 * DAY, shown, POLICY)


def test_the_old_ca_stays_while_a_process_may_still_show_its_certificate() -> None:
    cas = (authority("a", NOW - DAY), authority("b", NOW))
    lagging = Stored(cas, (held(NODE_1, "b", NOW, "a", "b", loaded=False), held(ALICE, "b", NOW, "a", "b")))
    assert () == plan(NOW + DAY, lagging, NO_OVERLAP)


def test_a_ca_that_has_expired_is_waited_for_by_nobody() -> None:
    cas = (authority("a", NOW - POLICY.authority), authority("b", NOW - DAY))
    assert (DropAuthority("a"),) == plan(NOW, Stored(cas, (held(NODE_1, "a", NOW - 80 * DAY, "a"),)), POLICY)


# --- somebody else issued before --------------------------------------------------------------------------------------


def of_others(name: str = "x", created: datetime = NOW) -> StoredAuthority:
    return replace(authority(name, created), elsewhere=True)


def test_cas_of_somebody_else_are_kept_before_there_is_one_of_ours() -> None:
    strangers = tuple(replace(held(each, "y", NOW, "y"), stranger=True) for each in (NODE_1, ALICE))
    for cas in ((), (authority("a"),)):
        assert (Adopt((NODE_1.identity, ALICE.identity)),) == plan(NOW, Stored(cas, strangers), POLICY)
    after = tuple(replace(held(each, "x", NOW, "x")) for each in (NODE_1, ALICE))
    assert (CreateAuthority(),) == plan(NOW, Stored((of_others(),), after), POLICY)
    left = Stored((authority("a"), of_others("z"), of_others()), after)
    assert (DropAuthority("a"), DropAuthority("z"), CreateAuthority()) == plan(NOW, left, POLICY), (
        "what nobody has trusted for long is not to be trusted again")


def test_a_certificate_of_somebody_else_that_has_ended_is_nothing_to_be_careful_about() -> None:
    ended = replace(held(ALICE, "y", NOW - 91 * DAY, "y"), stranger=True)
    assert (Issue(ALICE, "a", frozenset("a")),) == plan(NOW, Stored((authority("a"),), (ended,)), POLICY)


def test_after_somebody_else_everybody_hears_of_our_ca_before_it_issues() -> None:
    cas, both = (of_others(), authority("b")), frozenset("xb")
    late, due = Holder(Subject(node("late"))), held(ALICE, "x", NOW - 80 * DAY, "x")
    others = held(NODE_1, "x", NOW, "x")
    assert (Publish(NODE_1.identity, both), Publish(ALICE.identity, both), Issue(late.wanted, "b", both)) == plan(
        NOW, Stored(cas, (others, due, late)), NO_OVERLAP), "no key is there to renew anything with"
    lagging = [replace(each, bundle=both, loaded=each is not others) for each in (others, due)]
    ours = held(late.wanted, "b", NOW - 80 * DAY, "x", "b")
    assert (Issue(late.wanted, "b", both),) == plan(NOW, Stored(cas, (*lagging, ours)), NO_OVERLAP)
    told = [replace(each, bundle=both) for each in (others, due)]
    assert (Issue(NODE_1, "b", both), Issue(ALICE, "b", both)) == plan(NOW, Stored(cas, tuple(told)), NO_OVERLAP)
    lags = Stored(cas, (held(NODE_1, "b", NOW, "x", "b", loaded=False), held(ALICE, "b", NOW, "x", "b")))
    assert () == plan(NOW, lags, NO_OVERLAP), "its process may show the old one still"
    over = Stored(cas, (held(NODE_1, "b", NOW, "x", "b"), held(ALICE, "b", NOW, "x", "b")))
    assert (DropAuthority("x"),) == plan(NOW, over, NO_OVERLAP)


@pytest.mark.parametrize("days", [1, 2, 90])
def test_copies_are_waited_for_after_somebody_else_too_unless_a_certificate_ends_soon(days: int) -> None:
    one = replace(held(ALICE, "x", NOW, "x", "b"), expires=NOW + days * DAY)
    stored, waits = Stored((of_others(), authority("b")), (one,)), min(days * DAY / 2, DAY)
    assert () == plan(NOW + waits - DAY / 24, stored, POLICY)
    assert (Issue(ALICE, "b", frozenset("xb")),) == plan(NOW + waits, stored, POLICY)


def test_a_ca_that_was_made_for_an_earlier_move_is_unknown_to_copies() -> None:
    stored = Stored((of_others(), authority("b")), (held(ALICE, "x", NOW, "x"),))
    both = frozenset("xb")
    assert (Publish(ALICE.identity, both),) == plan(NOW + DAY / 2, stored, POLICY)
    assert (DropAuthority("b"), CreateAuthority()) == plan(NOW + DAY, stored, POLICY)
    assert (Publish(ALICE.identity, both),) == plan(NOW + DAY, stored, NO_OVERLAP), "there are none to wait for"
    later = Stored(stored.authorities, (held(ALICE, "x", NOW + 200 * DAY, "x"),))
    assert (DropAuthority("b"), CreateAuthority()) == plan(NOW + 280 * DAY, later, NO_OVERLAP), "it ends soon"


# --- everybody talks with everybody, whatever was carried out and loaded so far (X3) ----------------------------------


@dataclass
class Process:
    """One holder: its files, and those of them it has loaded; a client loads them with every connection."""

    holder: Holder
    reports: bool
    loaded: tuple[str | None, frozenset[str]]
    born: bool = False

    def load(self) -> None:
        self.loaded = self.holder.issuer, self.holder.bundle
        self.born = self.holder.issuer is not None


class World:
    """Processes and CAs, changed by one small step after another."""

    def __init__(self, nodes: int, clients: int, policy: Policy) -> None:
        self.policy = policy
        self.now = NOW
        self.made = 0
        self.authorities: list[StoredAuthority] = []
        self.processes: dict[Identity, Process] = {}
        for index in range(nodes):
            self.join(node(f"n{index}"), reports=True)
        for index in range(clients):
            self.join(client(f"c{index}"), reports=False)

    def join(self, identity: Identity, *, reports: bool) -> None:
        self.processes[identity] = Process(Holder(Subject(identity)), reports, (None, frozenset()))

    def stored(self) -> Stored:
        holders = []
        for process in self.processes.values():
            files = process.holder.issuer, process.holder.bundle
            loaded = not process.reports or not process.born or process.loaded == files
            holders.append(replace(process.holder, loaded=loaded))
        return Stored(tuple(self.authorities), tuple(holders))

    def plan(self) -> tuple[Action, ...]:
        return plan(self.now, self.stored(), self.policy)

    def carry_out(self, action: Action) -> None:
        match action:
            case CreateAuthority():
                self.made += 1
                name = f"ca{self.made}"
                self.authorities.append(StoredAuthority(name, self.now, self.now + self.policy.authority))
                assert len(self.authorities) <= 2
            case Publish(identity, bundle):
                process = self.processes[identity]
                process.holder = replace(process.holder, bundle=bundle)
                self.settle(process)
            case Issue(subject, name, bundle):
                process = self.processes[subject.identity]
                process.holder = replace(
                    process.holder, issued=subject, issuer=name, created=self.now,
                    expires=self.now + self.policy.certificate, bundle=bundle)
                self.settle(process)
            case DropAuthority(name):
                self.authorities = [one for one in self.authorities if one.id != name]
        self.check()

    def settle(self, process: Process) -> None:
        """What begins, or cannot say what it works with, works with the files."""
        if not process.reports or not process.born:
            process.load()

    def check(self) -> None:
        talking = [process for process in self.processes.values() if process.born]
        for one in talking:
            for other in talking:
                assert one.loaded[0] in other.loaded[1], (one, other)


@given(data=st.data(), nodes=st.integers(1, 3), clients=st.integers(0, 2), overlapping=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_two_processes_can_talk_at_every_step_of_every_rotation(
    data: st.DataObject, nodes: int, clients: int, overlapping: bool
) -> None:
    """Rule X3."""
    world = World(nodes, clients, POLICY if overlapping else NO_OVERLAP)
    for _ in range(data.draw(st.integers(5, 40), label="steps")):
        match data.draw(st.sampled_from(["act", "act", "act", "load", "load", "time", "retire", "join"]), label="step"):
            case "act":
                actions = list(data.draw(st.permutations(world.plan()), label="order"))
                for action in actions[: data.draw(st.integers(0, len(actions)), label="done")]:
                    world.carry_out(action)
            case "load":
                process = data.draw(st.sampled_from(list(world.processes.values())), label="who")
                if process.born:
                    process.load()
                    world.check()
            case "time":
                world.now += data.draw(st.integers(0, 20), label="days") * DAY / 2
            case "retire":
                world.authorities = [replace(one, retiring=True) for one in world.authorities]
            case "join" if len(world.processes) < 6:
                world.join(node(f"late{len(world.processes)}"), reports=True)


def test_a_rotation_that_is_asked_for_comes_to_its_end() -> None:
    world = World(2, 1, NO_OVERLAP)
    for _ in range(2):
        for action in world.plan():
            world.carry_out(action)
    world.authorities = [replace(world.authorities[0], retiring=True)]
    world.now += DAY
    steps = []
    while actions := world.plan():
        steps.append({type(action) for action in actions})
        for action in actions:
            world.carry_out(action)
        for process in world.processes.values():
            process.load()
        world.now += DAY / 24
        assert len(steps) < 10
    assert [{CreateAuthority}, {Publish}, {Issue}, {DropAuthority}, {Publish}] == steps
    assert ["ca2"] == [one.id for one in world.authorities]
    assert all(process.loaded == ("ca2", frozenset({"ca2"})) for process in world.processes.values())


# --- files ------------------------------------------------------------------------------------------------------------


def files(tmp_path: Path) -> CertificateFiles:
    return CertificateFiles(tmp_path / "tls", "prod")


def test_what_is_kept_reads_back_and_is_what_a_process_loads(tmp_path: Path) -> None:
    store = files(tmp_path)
    ensure(store, POLICY, NOW, [NODE_1, ALICE])
    assert {NODE_1.identity, ALICE.identity} == set(store.holders())
    assert NODE_1 == store.holders()[NODE_1.identity].facts.subject
    material = read_material(TlsSettings.of_directory(store.folder(NODE_1.identity)))
    assert store.holders()[NODE_1.identity].leaf.certificate == material.certificate
    ensure(store, POLICY, NOW, [NODE_1])
    assert material == read_material(TlsSettings.of_directory(store.folder(NODE_1.identity)))


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    store = files(tmp_path)
    ensure(store, POLICY, NOW, [NODE_1, ALICE])
    keys = [path for path in store.directory.rglob("*.key") if not path.is_symlink()]
    assert len(keys) == 3
    assert {0o600} == {stat.S_IMODE(path.stat().st_mode) for path in keys}
    folders = [path for path in (store.directory, *store.directory.rglob("*")) if path.is_dir()]
    assert {0o700} == {stat.S_IMODE(path.stat().st_mode) for path in folders}


def test_a_name_that_leads_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        files(tmp_path).folder(client("../../etc"))


def test_a_rotation_of_files_ends_with_nothing_of_the_old_ca(tmp_path: Path) -> None:
    store = files(tmp_path)
    ensure(store, NO_OVERLAP, NOW, [NODE_1, ALICE])
    before = store.holders()
    retired = request_rotation(store)
    now, passes = NOW + DAY, 0
    while not rotated(store, retired):
        now, passes = now + timedelta(seconds=1), passes + 1
        keep(store, NO_OVERLAP, now, reports={})
        assert passes < 10
    after = store.holders()
    assert all(before[one].leaf != after[one].leaf and retired not in after[one].trusts for one in before)
    assert len(list(store.folder(ALICE.identity).glob("..[0-9]*"))) == 1
    status = validity(store)
    assert status is not None
    assert not status.overlapping
    assert status.earliest_expires > NOW + 90 * DAY


def test_a_rotation_waits_for_a_process_that_reports_older_files(tmp_path: Path) -> None:
    """Rule X4."""
    store = files(tmp_path)
    ensure(store, NO_OVERLAP, NOW, [NODE_1])
    request_rotation(store)
    reports = {NODE_1.identity: read_material(TlsSettings.of_directory(store.folder(NODE_1.identity))).fingerprint}
    now = NOW + DAY
    for _ in range(5):
        now += timedelta(seconds=1)
        done = keep(store, NO_OVERLAP, now, reports=reports)
    assert () == done
    assert len(store.authorities()) == 2
    assert read_leaf(store.holders()[NODE_1.identity].leaf.certificate).created == NOW


def test_who_asked_nobody_what_is_loaded_moves_no_rotation_on(tmp_path: Path) -> None:
    store = files(tmp_path)
    ensure(store, NO_OVERLAP, NOW, [NODE_1])
    old = store.authorities()[0].id
    request_rotation(store)
    for second in range(1, 8):
        ensure(store, NO_OVERLAP, NOW + timedelta(seconds=second), [Subject(client(f"c{second}"))])
    holders = store.holders()
    assert len(holders) == 8
    assert {old} == {held.facts.issuer for held in holders.values()}
    assert {frozenset(one.id for one in store.authorities())} == {held.trusts for held in holders.values()}
    keep(store, NO_OVERLAP, NOW + DAY, reports={})
    assert old not in {held.facts.issuer for held in store.holders().values()}
