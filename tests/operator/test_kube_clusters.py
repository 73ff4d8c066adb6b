"""Clusters as an operator takes them up: with or without TLS, and with what the Secrets of their etcd say."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from given_secrets import CA, Secrets
from kubernetes.aio.client import Configuration
from tidemark_operator.certificates.keeper import keep, now_utc
from tidemark_operator.certificates.rotation import Policy
from tidemark_operator.etcd_access import Login
from tidemark_operator.kube.builders import Cluster
from tidemark_operator.kube.certificates import subjects
from tidemark_operator.kube.operator import KubernetesOperator
from tidemark_operator.kube.queue import Later
from tidemark_operator.kube.run import TLS_STAYS
from tidemark_operator.kube.secret_store import SecretStore
from tidemark_operator.metadata import StoredObject
from tidemark_operator.mirror import Versioned
from tidemark_operator.resources import load_resource

from tests.waiting import until

Object = dict[str, Any]
CLEAR = {"security": {"tls": {"mode": "Disabled"}, "clientAuth": "None"}}


class Api(Secrets):
    """Secrets by name, and what statuses said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.cluster: Object = {}

    async def apply(self, body: Object, subresource: str, manager: str) -> Object:
        self.said += [each["message"] for each in body["status"]["conditions"] if each["type"] == "Stalled"]
        return {**self.cluster, "status": body["status"]}

    async def close(self) -> None:
        """Nothing is open."""


def item(version: int, uid: str = "u1", etcd: Object | None = None, **spec: Any) -> Object:
    written = {
        "version": "0.1.0", "metadataStore": {"etcd": etcd or {"endpoints": ["http://127.0.0.1:1"]}},
        "nodePools": [{"name": "default", "replicas": 3, "storage": {"data": {"size": "1Gi"}}}], **spec}
    made = load_resource({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "TidemarkCluster", "metadata": {"name": "prod"},
        "spec": written}, "test").manifest()
    made["metadata"] = {"name": "prod", "namespace": "data", "uid": uid, "generation": version,
                        "resourceVersion": str(version), "creationTimestamp": "2026-01-01T00:00:00Z"}
    return made


@pytest.fixture
async def operator() -> AsyncIterator[KubernetesOperator]:
    made = KubernetesOperator(Configuration(), ["data"])
    await made._api.close()
    made._api = Api()  # type: ignore[assignment]
    made._writer._api = made._api
    made._queue = SimpleNamespace(add=lambda key: None, add_after=lambda key, seconds: None)  # type: ignore[assignment]
    yield made
    for run in made._runs.values():
        await run.stop()


async def see(operator: KubernetesOperator, cluster: Object | None) -> Any:
    cache = operator._caches["TidemarkCluster"]
    if cluster is not None:
        operator._api.cluster = cluster  # type: ignore[attr-defined]
        cache.learn(copy.deepcopy(cluster))
    await operator._cluster("data", "prod")
    return operator._runs.get(("data", "prod"))


def store(run: Any, cluster: Object) -> None:
    stored = StoredObject(cluster, cluster["metadata"]["uid"], "2026-01-01T00:00:00Z", kept=True)
    run.service.mirror.objects["TidemarkCluster"][""] = Versioned(stored, 3)


async def test_a_cluster_keeps_whether_it_has_tls_until_it_is_another_one(operator: KubernetesOperator) -> None:
    run = await see(operator, item(1))
    assert run.has_tls, "Managed is the default"
    store(run, item(1))
    assert run is await see(operator, item(2, **CLEAR))
    assert run.accepted() is not None
    run.service.driver.active = True
    assert not await run.accept(item(2, **CLEAR))
    assert run.refused["TidemarkCluster", "prod"] == TLS_STAYS

    # An operator that starts meanwhile is wrong about it until it has seen what is stored.
    await run.stop()
    del operator._runs["data", "prod"]
    run = await see(operator, item(3, **CLEAR))
    assert not run.has_tls
    store(run, item(1))
    assert run.accepted() is None, "nothing is made for it like this"
    run = await see(operator, item(3, **CLEAR))
    assert run.has_tls

    # Deleted and made again it may be other than it was.
    store(run, item(1))
    again = await see(operator, item(4, uid="u2", **CLEAR))
    assert not again.has_tls


async def test_who_issues_its_certificates_may_change_while_a_cluster_lives(operator: KubernetesOperator) -> None:
    elsewhere = {"security": {"tls": {"mode": "CertManager", "issuerRef": {"name": "platform"}}}}
    run = await see(operator, item(1))
    adopted: list[Object] = []
    pokes: asyncio.Queue[str] = asyncio.Queue()

    async def adopt(manifest: Object, _identity: object) -> str:
        adopted.append(manifest)
        return "TidemarkCluster/prod configured"

    run.service.objects.adopt = adopt
    run.certificates_changed = lambda: pokes.put_nowait(run.accepted().spec["security"]["tls"]["mode"])
    run.service.driver.active = True
    for version, (before, after, mode) in enumerate((
            ({}, elsewhere, "CertManager"), (elsewhere, {}, "Managed")), 2):
        store(run, item(version - 1, **before))
        assert await run.accept(item(version, **after))
        assert adopted[-1]["spec"]["security"]["tls"]["mode"] == mode
        assert run.refused == {}
        store(run, item(version, **after))
        run.service.wake_watchers()
        async with asyncio.timeout(10):
            while await pokes.get() != mode:  # at once, and not with the next pass a minute later
                pass
        assert run.accepted() is not None
    assert not await run.accept(item(4, **CLEAR)), "but it has TLS for as long as it lives"
    run.service.driver.active = False


async def test_who_stands_by_has_its_certificate_too(operator: KubernetesOperator) -> None:
    run = await see(operator, item(1))
    cluster = Cluster("data", "prod", "u1", {})
    secrets: dict[str, Object] = {}
    for version in range(1, 3):  # the CA, then what it issues
        held = SecretStore(cluster, secrets.values())
        keep(held, Policy(), now_utc(), wanted=subjects(cluster, [], []))
        for write in held.writes():
            metadata = {**write.manifest["metadata"], "uid": "s", "resourceVersion": str(version)}
            secrets[write.name] = {**write.manifest, "metadata": metadata}
    operator._caches["Secret"].learn(secrets["prod-operator-tls"])
    store(run, item(1))
    run.service.wake_watchers()
    await until(lambda: run.certificates.taken)
    assert not run.service.active
    assert run.certificates.credentials.generation == 1


async def test_etcd_is_spoken_to_as_the_secrets_say(operator: KubernetesOperator) -> None:
    api: Any = operator._api
    etcd = {"endpoints": ["https://127.0.0.1:1"], "tlsSecretRef": {"name": "tls"},
            "credentialsSecretRef": {"name": "user"}}
    with pytest.raises(Later, match="there is no Secret tls"):
        await see(operator, item(1, etcd=etcd))
    assert "metadataStore.etcd.tlsSecretRef: there is no Secret tls" in api.said[-1]
    assert not operator._runs
    api.secrets = {"tls": {"ca.crt": CA}, "user": {"username": "tidemark", "password": "one"}}
    run = await see(operator, None)
    access = run.service.store._channels.access
    assert (access.tls.ca, access.login) == (CA.encode(), Login("tidemark", "one"))
    assert run is await see(operator, None)
    assert access is run.service.store._channels.access, "the same again changes nothing"
    api.secrets["user"]["password"] = "two"
    assert run is await see(operator, None)
    assert run.service.store._channels.access.login == Login("tidemark", "two")
    del api.secrets["user"]
    assert run is await see(operator, None)
    assert run.service.store._channels.access.login == Login("tidemark", "two"), "what was read before goes on"


async def test_a_look_at_everything_is_spread_over_time(operator: KubernetesOperator) -> None:
    async def nothing(*_: Any) -> tuple[list[Object], str]:
        return [], "1"

    async def stopped() -> None:
        """It never ran."""

    due: dict[tuple[str, ...], float] = {}
    operator._api.list = nothing  # type: ignore[method-assign]
    operator._queue = SimpleNamespace(add_after=due.__setitem__)  # type: ignore[assignment]
    operator._runs = {("data", f"c{number}"): SimpleNamespace(stop=stopped) for number in range(4)}  # type: ignore[misc]
    await operator._look("data", 60.0)
    assert {key[2]: seconds for key, seconds in due.items()} == {"c0": 0, "c1": 15, "c2": 30, "c3": 45}
    assert len(due) == 4 * 6
    await operator._look("data", 0.0)
    assert set(due.values()) == {0}, "after trouble at once"
