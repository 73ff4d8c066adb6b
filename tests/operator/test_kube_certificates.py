"""Certificates in Secrets: who gets one, two operators at once, what others do to Secrets, and rotation."""

from __future__ import annotations

import asyncio
import base64
import copy
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from tidemark_operator.certificates.authority import InvalidCertificate, ids_in, read_leaf
from tidemark_operator.certificates.keeper import keep, now_utc, rotating
from tidemark_operator.certificates.rotation import Policy
from tidemark_operator.certificates.subject import Subject
from tidemark_operator.kube.api import Kind, KubeRefused
from tidemark_operator.kube.builders import Cluster, secret_name
from tidemark_operator.kube.cache import Cache
from tidemark_operator.kube.cert_manager import certificate
from tidemark_operator.kube.certificates import ClusterCertificates, SecretArchive, subjects
from tidemark_operator.kube.secret_store import SecretStore
from tidemark_wire.identity import AccessLists, Identity
from tidemark_wire.tls import fingerprint_of

from tests.kube.cert_manager import Signer
from tests.seeds import every_seed

Object = dict[str, Any]

PROD = Cluster("data", "prod", "uid-1", {})
ELSEWHERE = replace(PROD, spec={"security": {"tls": {"mode": "CertManager", "issuerRef": {"name": "platform"}}}})
POLICY = replace(Policy(), overlap=timedelta(0))
NODES = ["prod-1", "prod-2", "prod-3"]
ROTATE = {"tidemark.dev/rotate-ca": "true"}


class Server:
    """Secrets on an API server: versions, uids, preconditions; others get their turn between two requests."""

    def __init__(self, dice: random.Random | None = None) -> None:
        self.secrets: dict[str, Object] = {}
        self.writes = 0
        self.on_write: Callable[[], None] = lambda: None
        self._version = 0
        self._dice = dice or random.Random(0)

    async def _turn(self) -> None:
        for _ in range(self._dice.choice([0, 0, 1, 2, 3, 500])):  # now and then so long that others do a whole step
            await asyncio.sleep(0)

    def _store(self, secret: Object) -> Object:
        self._version += 1
        self.writes += 1
        secret["metadata"]["resourceVersion"] = str(self._version)
        self.secrets[secret["metadata"]["name"]] = secret
        self.on_write()
        return copy.deepcopy(secret)

    async def list(self, kind: Kind, namespace: str, labels: str) -> tuple[list[Object], str]:
        await self._turn()
        wanted = dict(each.split("=") for each in labels.split(","))
        found = [copy.deepcopy(each) for each in self.secrets.values()
                 if wanted.items() <= each["metadata"].get("labels", {}).items()]
        await self._turn()
        return found, str(self._version)

    async def create(self, manifest: Object) -> Object:
        await self._turn()
        if (name := manifest["metadata"]["name"]) in self.secrets:
            raise KubeRefused(409, "AlreadyExists", f'secrets "{name}" already exists')
        made = copy.deepcopy(manifest)
        made["metadata"]["uid"] = f"secret-{self._version}"
        return self._store(made)

    async def merge(self, kind: Kind, namespace: str, name: str, changes: Object) -> Object:
        await self._turn()
        known = self.secrets.get(name)
        if known is None:
            raise KubeRefused(404, "NotFound", name)
        if any(changes["metadata"][field] != known["metadata"][field] for field in ("uid", "resourceVersion")):
            raise KubeRefused(409, "Conflict", f"{name} has been modified")
        made = copy.deepcopy(known)
        for place, news in (
            (made["data"], changes.get("data", {})),
            (made["metadata"].setdefault("annotations", {}), changes["metadata"].get("annotations", {})),
        ):
            for key, value in news.items():
                place.pop(key, None)
                if value is not None:
                    place[key] = value
        return self._store(made)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        await self._turn()
        if name in self.secrets and self.secrets[name]["metadata"]["uid"] == uid:
            self.writes += 1
            del self.secrets[name]

    def issued(self, signer: Signer, subject: Subject) -> None:
        """Write a Secret as cert-manager does."""
        made = signer.secret(certificate(ELSEWHERE, subject, POLICY))
        made["metadata"]["uid"] = f"issued-{subject.identity}"
        self._store(made)

    def file(self, secret: str, name: str) -> bytes:
        return base64.b64decode(self.secrets[secret]["data"][name])

    def store(self) -> SecretStore:
        return SecretStore(PROD, self.secrets.values())


def archive(server: Server, cache: Cache | None = None, cluster: Cluster | None = PROD) -> SecretArchive:
    return SecretArchive(
        server, cache or Cache(), "data", "prod", timedelta(0), lambda: cluster, list)  # type: ignore[arg-type]


def wanted(nodes: Iterable[str] = NODES, *lists: AccessLists) -> list[Subject]:
    return subjects(PROD, nodes, lists)


async def settle(
    where: SecretArchive, who: list[Subject], reports: dict[Identity, str] | None = None
) -> None:
    """Take steps until there are none."""
    while await where.change(partial(
            keep, policy=POLICY, now=now_utc(), wanted=who, reports=reports, only_wanted=True)):
        pass


def test_who_gets_a_certificate_and_under_which_names() -> None:
    lists = AccessLists.of(["billing", "*"], ["billing", "No_Secret"], ["team.data"])
    made = {str(each.identity): each for each in subjects(PROD, ["prod-1"], [lists, None])}
    assert made.keys() == {f"spiffe://prod/{each}" for each in (
        "operator/operator", "admin/admin", "node/prod-1", "client/billing", "client/team.data")}
    names = made["spiffe://prod/node/prod-1"].dns
    assert names[0] == "prod-1", "other nodes and the operator ask for this one"
    assert {"prod", "prod.data.svc", "prod-nodes.data.svc", "prod-1.prod-nodes.data.svc.cluster.local"} < set(names)
    assert len(names) == len(set(names))
    assert made["spiffe://prod/client/billing"].dns == ()


async def test_what_the_secrets_look_like() -> None:
    server = Server()
    await settle(archive(server), wanted(NODES, AccessLists.of(["billing"], [], [])))
    assert server.secrets.keys() == {
        "prod-ca", "prod-operator-tls", "prod-admin-tls", "prod-client-billing-tls", *(f"{node}-tls" for node in NODES)}
    ca, node = server.secrets["prod-ca"], server.secrets["prod-1-tls"]
    assert "ownerReferences" not in ca["metadata"], "it outlives the cluster"
    assert [each["uid"] for each in node["metadata"]["ownerReferences"]] == ["uid-1"]
    assert (node["type"], node["data"].keys()) == ("kubernetes.io/tls", {"tls.crt", "tls.key", "ca.crt"})
    assert ca["data"].keys() == {"ca-1.crt", "ca-1.key"}
    assert server.file("prod-1-tls", "ca.crt") == server.file("prod-ca", "ca-1.crt")
    for secret in server.secrets.values():
        assert secret["metadata"]["labels"]["tidemark.dev/cluster"] == "prod"
    before = server.writes
    await settle(archive(server), wanted(NODES, AccessLists.of(["billing"], [], [])))
    assert server.writes == before, "a pass behind a pass writes nothing"
    await settle(archive(server), wanted(NODES[:2]))
    assert server.secrets.keys() == {
        "prod-ca", "prod-operator-tls", "prod-admin-tls", "prod-1-tls", "prod-2-tls"}, "who shall hold none has none"


@every_seed(8)
async def test_two_operators_make_one_ca(seed: int) -> None:
    server = Server(random.Random(seed))
    made: set[bytes] = set()

    def look() -> None:
        assert len([name for name in server.secrets["prod-ca"]["data"] if name.endswith(".key")]) == 1
        made.add(server.file("prod-ca", "ca-1.key"))

    server.on_write = look
    await asyncio.gather(*(
        asyncio.wait_for(_persist(archive(server)), 20) for _ in range(2)), return_exceptions=False)
    assert len(made) == 1
    (authority,) = server.store().authorities()
    assert {held.facts.issuer for held in server.store().holders().values()} == {authority.id}
    assert len(server.store().holders()) == len(wanted())


async def _persist(where: SecretArchive) -> None:
    """Go on through contention, as the tender does."""
    while True:
        try:
            await settle(where, wanted())
            return
        except ConnectionError:
            await asyncio.sleep(0)


class Processes:
    """Nodes and operators: each shows and trusts what it has loaded, and loads what its Secret says when it likes."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._versions: dict[Identity, str] = {}
        self.loaded = dict(server.store().holders())

    def load(self, identity: Identity) -> None:
        secret = self._server.secrets[secret_name("prod", identity.kind, identity.name)]
        if secret["metadata"]["resourceVersion"] != self._versions.get(identity):
            self._versions[identity] = secret["metadata"]["resourceVersion"]
            self.loaded[identity] = SecretStore(PROD, [secret]).holders()[identity]

    def reports(self) -> dict[Identity, str]:
        return {identity: fingerprint_of(held.leaf.certificate, held.bundle) for identity, held in self.loaded.items()}

    def check(self) -> None:
        for one, shown in self.loaded.items():
            for other, judge in self.loaded.items():
                assert shown.facts.issuer in judge.trusts, f"{other} turns {one} down"


@every_seed(8)
async def test_in_a_rotation_by_two_operators_everybody_can_talk_at_every_moment(seed: int) -> None:
    dice = random.Random(seed)
    server = Server(dice)
    await settle(archive(server), wanted())
    before = server.store().authorities()[0].id
    server.secrets["prod-ca"]["metadata"]["annotations"] = dict(ROTATE)
    server.secrets["prod-ca"]["metadata"]["resourceVersion"] = "100000"
    processes, over = Processes(server), asyncio.Event()

    async def operate() -> None:
        where = archive(server)
        while not over.is_set():
            reports = processes.reports()
            await asyncio.sleep(0)  # they are old by the time they count
            with suppress(ConnectionError):
                await where.change(partial(
                    keep, policy=POLICY, now=now_utc(), wanted=wanted(), reports=reports, only_wanted=True))
            await asyncio.sleep(0)

    async def live() -> None:
        while len(trusted := set.union(*({*held.trusts} for held in processes.loaded.values()))) > 1 or (
                before in trusted or "ca-1.crt" in server.secrets["prod-ca"]["data"]):
            processes.load(dice.choice(list(processes.loaded)))
            processes.check()
            await asyncio.sleep(0)
        over.set()

    async with asyncio.timeout(60):
        await asyncio.gather(operate(), operate(), live())
    assert before not in {held.facts.issuer for held in processes.loaded.values()}
    assert not server.store().retiring(), "asked once is done once"


class Life:
    """One operator that is killed now and then while processes go on; any two of them can always talk."""

    def __init__(self, dice: random.Random, where: SecretArchive, processes: Processes) -> None:
        self._dice, self._where, self._processes = dice, where, processes

    async def go_on(self, over: Callable[[], bool], happening: Callable[[], None] = lambda: None) -> None:
        operator = asyncio.create_task(self._operate())
        try:
            async with asyncio.timeout(60):
                while not over():
                    happening()
                    self._processes.load(self._dice.choice(list(self._processes.loaded)))
                    self._processes.check()
                    if operator.done():
                        await operator  # it does not end by itself
                    if self._dice.random() < 0.002:
                        operator.cancel()
                        await asyncio.gather(operator, return_exceptions=True)
                        operator = asyncio.create_task(self._operate())
                    await asyncio.sleep(0)
        finally:
            operator.cancel()
            (ended,) = await asyncio.gather(operator, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended

    async def _operate(self) -> None:
        while True:
            reports = self._processes.reports()
            await asyncio.sleep(0)  # they are old by the time they count
            with suppress(ConnectionError):
                await self._where.change(partial(
                    keep, policy=POLICY, now=now_utc(), wanted=wanted(), reports=reports, only_wanted=True))
            await asyncio.sleep(0)


def trusted_by(processes: Processes) -> set[str]:
    return set.union(*({*held.trusts} for held in processes.loaded.values()))


@every_seed(4)
async def test_while_it_changes_who_issues_everybody_can_talk_at_every_moment(seed: int) -> None:
    dice = random.Random(seed)
    server, now_is = Server(dice), [PROD]
    where = SecretArchive(
        server, Cache(), "data", "prod", timedelta(0), lambda: now_is[0], list)  # type: ignore[arg-type]
    await settle(where, wanted())
    first, processes = server.store().authorities()[0].id, Processes(server)
    life, signer, steps = Life(dice, where, processes), Signer("platform"), [0]

    def issue() -> None:
        """cert-manager has signed for somebody."""
        steps[0] += 1
        if now_is[0] is ELSEWHERE and dice.random() < 0.01:
            server.issued(signer, dice.choice(wanted()))

    for _ in range(4):  # there and back, before anything has come to its end
        for cluster in (ELSEWHERE, PROD):
            now_is[0] = cluster
            ends = steps[0] + dice.choice([30, 300, 1500])
            await life.go_on(lambda ends=ends: steps[0] >= ends, issue)  # type: ignore[misc]
        signer = dice.choice([signer, Signer("platform, later")])

    def ours() -> bool:
        kept = server.secrets["prod-ca"]["data"].keys()
        return len(kept) == 2 and len(trusted := trusted_by(processes)) == 1 and trusted == {
            authority.id for authority in server.store().authorities()}

    theirs = ids_in(signer.ca_file)
    for cluster, over in ((ELSEWHERE, lambda: trusted_by(processes) == theirs), (PROD, ours)):
        now_is[0] = cluster
        for subject in wanted() if cluster is ELSEWHERE else ():
            server.issued(signer, subject)
        await life.go_on(over)
    assert first not in trusted_by(processes), "a key that lay idle meanwhile is not used again"
    assert len(processes.loaded) == len(wanted())
    before = server.writes
    await settle(where, wanted(), processes.reports())
    assert server.writes == before


async def test_a_ca_that_is_lost_is_replaced_while_everybody_can_talk() -> None:
    server = Server()
    where = archive(server)
    await settle(where, wanted())
    (lost,) = server.store().authorities()
    processes = Processes(server)
    del server.secrets["prod-ca"]
    await settle(where, wanted(), processes.reports())
    assert server.secrets["prod-ca"]["data"].keys() == {"others-1.crt", "ca-2.crt", "ca-2.key"}
    assert server.file("prod-ca", "others-1.crt") == lost.certificate
    assert {held.facts.issuer for held in server.store().holders().values()} == {lost.id}
    await Life(random.Random(0), where, processes).go_on(lambda: lost.id not in trusted_by(processes))
    assert server.secrets["prod-ca"]["data"].keys() == {"ca-2.crt", "ca-2.key"}


async def test_a_certificate_of_a_ca_that_nobody_else_trusts_is_written_anew_at_once() -> None:
    server = Server()
    where = archive(server)
    await settle(where, wanted())
    old = copy.deepcopy(server.secrets["prod-1-tls"]["data"])
    server.secrets["prod-ca"]["metadata"]["annotations"] = dict(ROTATE)
    await settle(where, wanted(), {})
    (authority,) = server.store().authorities()
    server.secrets["prod-1-tls"]["data"] = old  # out of a backup
    await where.change(partial(keep, policy=POLICY, now=now_utc(), wanted=wanted(), only_wanted=True))
    assert {held.facts.issuer for held in server.store().holders().values()} == {authority.id}
    assert {held.trusts for held in server.store().holders().values()} == {frozenset({authority.id})}
    assert server.store().authorities() == [authority]


async def test_a_rotation_is_asked_for_once_and_waits_for_who_has_not_loaded() -> None:
    server = Server()
    where = archive(server)
    await settle(where, wanted())
    server.secrets["prod-ca"]["metadata"]["annotations"] = {**ROTATE, "note": "x"}
    processes = Processes(server)
    await settle(where, wanted(), processes.reports())
    assert server.secrets["prod-ca"]["metadata"]["annotations"] == {"note": "x"}
    assert server.secrets["prod-ca"]["data"].keys() == {f"ca-{n}.{what}" for n in (1, 2) for what in ("crt", "key")}
    old, new = server.store().authorities()
    assert {held.facts.issuer for held in server.store().holders().values()} == {old.id}
    assert {held.trusts for held in server.store().holders().values()} == {frozenset({old.id, new.id})}
    assert rotating(server.store())


async def test_what_is_spoilt_is_written_anew_but_never_the_ca() -> None:
    server = Server()
    where = archive(server)
    await settle(where, wanted())
    other = server.secrets["prod-2-tls"]["data"]
    server.secrets["prod-1-tls"]["data"]["tls.key"] = other["tls.key"]
    server.secrets["prod-2-tls"] = {**server.secrets["prod-2-tls"], "data": {"tls.crt": "%%%"}}
    server.secrets["prod-3-tls"]["data"] = copy.deepcopy(server.secrets["prod-admin-tls"]["data"])
    await settle(where, wanted())
    assert len(server.store().holders()) == len(wanted())
    for node in NODES:
        assert read_leaf(server.file(f"{node}-tls", "tls.crt")).subject.identity.name == node
    del server.secrets["prod-ca"]["data"]["ca-1.key"]
    before = copy.deepcopy(server.secrets)
    with pytest.raises(InvalidCertificate, match=r"Secret prod-ca: ca-1\.key is missing"):
        await settle(where, wanted())
    assert server.secrets == before


async def test_a_name_that_is_taken_is_left_alone_and_told() -> None:
    server = Server()
    theirs = {"metadata": {"name": "prod-ca", "namespace": "data", "uid": "x", "resourceVersion": "1"}, "data": {}}
    server.secrets["prod-ca"] = copy.deepcopy(theirs)
    with pytest.raises(ConnectionError, match='secrets "prod-ca" already exists'):
        await settle(archive(server), wanted())
    assert server.secrets == {"prod-ca": theirs}


async def test_an_earlier_cluster_of_this_name_leaves_its_ca_and_nothing_else() -> None:
    server = Server()
    await settle(archive(server), wanted())
    before = server.file("prod-ca", "ca-1.crt")
    later = replace(PROD, uid="uid-2")
    with pytest.raises(ConnectionError, match="already exists"):
        await settle(archive(server, cluster=later), wanted())
    for name in [name for name in server.secrets if name != "prod-ca"]:  # as the garbage collector does
        del server.secrets[name]
    await settle(archive(server, cluster=later), wanted())
    assert before == server.file("prod-ca", "ca-1.crt") == server.file("prod-1-tls", "ca.crt")


async def test_nothing_is_made_for_a_cluster_that_is_gone() -> None:
    server = Server()
    where = archive(server, cluster=None)
    assert not where.usable()
    with pytest.raises(ConnectionError, match="not there any more"):
        await settle(where, wanted())
    assert await where.read(lambda store: store.authorities()) == []


async def test_the_operator_shows_what_its_secret_says_and_nothing_of_use_before() -> None:
    server, cache = Server(), Cache()
    mine = ClusterCertificates(archive(server, cache))
    before = mine.credentials.material
    mine.take()
    assert mine.credentials.material == before
    await settle(mine.archive, wanted())
    mine.take()
    assert mine.credentials.generation == 1
    assert mine.credentials.material.certificate == server.file("prod-operator-tls", "tls.crt")
    assert mine.credentials.material.ca == server.file("prod-ca", "ca-1.crt") != before.ca
    mine.take()
    assert mine.credentials.generation == 1


async def test_keys_are_in_no_text() -> None:
    server = Server()
    writes: list[Any] = []

    @contextmanager
    def noted(store: SecretStore) -> Iterator[None]:
        yield
        writes.extend(store.writes())

    def work(store: Any) -> Any:
        with noted(store):
            return keep(store, POLICY, now_utc(), wanted=wanted())

    while await archive(server).change(work):
        pass
    keys = [base64.b64decode(secret["data"][name]).decode()
            for secret in server.secrets.values() for name in secret["data"] if name.endswith(".key")]
    said = repr(writes) + repr(server.store().authorities()) + repr(server.store().holders())
    assert writes
    assert not [key for key in keys if key in said or base64.b64encode(key.encode()).decode() in said]
    assert "PRIVATE" not in said
