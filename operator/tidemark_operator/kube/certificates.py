"""Certificates of a cluster on Kubernetes: who shall hold one, and the Secrets they are in.

The operator's own are in a Secret too, and nowhere else.
Stays out: what comes next (`certificate_tending`), what the Secrets look like (`secret_store`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeVar

from tidemark_wire.identity import EVERYBODY, AccessLists, Identity, Kind
from tidemark_wire.tls import GivenCredentials, Material

from ..certificates.authority import create_authority, issue
from ..certificates.keeper import now_utc
from ..certificates.rotation import Policy
from ..certificates.store import CertificateStore, Lack
from ..certificates.subject import Subject
from ..model import OPERATOR_NAME
from ..resources.base import DNS_SUBDOMAIN
from ..resources.labels import MANAGED_BY, Label
from . import cert_manager
from .api import SECRETS, KubeApi, KubeError, KubeRefused
from .builders import Cluster, issued_elsewhere, secret_name, server_names
from .cache import Cache
from .secret_store import ISSUED, SecretStore, component_of

ADMIN_NAME = "admin"
"""The admin of the cluster whose certificate is in the Secret `<cluster>-admin-tls`."""

OVERLAP = Policy().overlap
"""How long two CAs are trusted unless somebody says otherwise: Secrets are copied, and nobody says what by."""

ATTEMPTS_MAX = 3
_SECRET_NAME = re.compile(DNS_SUBDOMAIN)

T = TypeVar("T")


def subjects(cluster: Cluster, nodes: Iterable[str], lists: Iterable[AccessLists | None]) -> list[Subject]:
    """Return who shall hold a certificate: the operator, an admin, each node, and each client that a group names.

    A client whose name no Secret can have gets none.
    """
    def identity(kind: Kind, name: str) -> Identity:
        return Identity(cluster.name, kind, name)

    clients = sorted({
        name for each in lists if each is not None for names in each for name in names
        if name != EVERYBODY and _SECRET_NAME.fullmatch(name)})
    return [
        Subject(identity(Kind.OPERATOR, OPERATOR_NAME), (OPERATOR_NAME,)),
        Subject(identity(Kind.ADMIN, ADMIN_NAME)),
        *(Subject(identity(Kind.NODE, node), server_names(cluster.namespace, cluster.name, node)) for node in nodes),
        *(Subject(identity(Kind.CLIENT, name)) for name in clients),
    ]


def _nobody(cluster: str) -> Material:
    """Return credentials that trust nobody and that nobody trusts: an operator that has no others reaches no node."""
    authority = create_authority(cluster, now_utc(), timedelta(days=1))
    leaf = issue(authority, Subject(Identity(cluster, Kind.OPERATOR, "nobody")), now_utc(), timedelta(days=1))
    return Material(authority.certificate, leaf.certificate, leaf.key)


class SecretArchive:
    """The Secrets of one cluster: read as the cache has them, changed as the API server has them.

    `accepted` is the cluster they are made for, None while nothing may be; `wanted` are those who shall hold any.
    """

    watched = True

    def __init__(
        self, api: KubeApi, cache: Cache, namespace: str, cluster: str, overlap: timedelta,
        accepted: Callable[[], Cluster | None], wanted: Callable[[], Iterable[Subject]],
    ) -> None:
        self.cluster = cluster
        self.overlap = overlap
        self.wanted = wanted
        self._api = api
        self._cache = cache
        self._namespace = namespace
        self._accepted = accepted
        self._asked = False   # cert-manager, perhaps for what it has not written yet
        self._selector = f"app.kubernetes.io/managed-by={MANAGED_BY},{Label.CLUSTER.value}={cluster}"

    def usable(self) -> bool:
        return self._accepted() is not None

    async def read(self, look: Callable[[CertificateStore], T]) -> T:
        cluster = self._accepted()
        found = self._cache.of_cluster(self._namespace, self.cluster).values() if cluster is not None else ()
        here = cluster or Cluster(self._namespace, self.cluster, "", {})
        return await asyncio.to_thread(lambda: look(SecretStore(here, found)))  # reading keys takes a while

    async def change(self, work: Callable[[CertificateStore], T]) -> T:
        """Have `work` done on the Secrets of one moment, and on those of a later one where they were others by then."""
        contended = ""
        for _attempt in range(ATTEMPTS_MAX):
            try:
                return await self._try(work)
            except KubeRefused as refused:
                if refused.code not in (404, 409):
                    raise ConnectionError(f"Secrets cannot be written: {refused.message}") from refused
                contended = refused.message
            except KubeError as error:
                raise ConnectionError(f"Secrets cannot be written: {error}") from error
        raise ConnectionError(f"Secrets are written by somebody else too: {contended}")

    async def request(self, policy: Policy) -> Lack | None:
        """Where cert-manager issues, have it asked for what is wanted, and return what is not there.

        Where it does not any more, nothing is to be left of what it was asked for.
        """
        cluster = self._accepted()
        if cluster is None:
            return None
        secrets = self._cache.of_cluster(self._namespace, self.cluster)
        try:
            if not issued_elsewhere(cluster.spec):
                if self._asked or any(component_of(secret) == ISSUED for secret in secrets.values()):
                    await cert_manager.withdraw(self._api, cluster, secrets)
                    self._asked = False
                return None
            self._asked = True
            return await cert_manager.request(
                self._api, cluster, list(self.wanted()), policy, secrets, now_utc())
        except KubeError as error:
            raise ConnectionError(f"cert-manager cannot be asked: {error}") from error

    async def _try(self, work: Callable[[CertificateStore], T]) -> T:
        cluster = self._accepted()
        if cluster is None:
            raise ConnectionError(f"the cluster {self.cluster} is not there any more")
        found, _version = await self._api.list(SECRETS, self._namespace, self._selector)
        store = SecretStore(cluster, found)
        done = await asyncio.to_thread(work, store)
        for write in store.writes():
            metadata = write.manifest["metadata"]
            match write.verb:
                case "create":
                    self._cache.learn(await self._api.create(write.manifest))
                case "merge":
                    self._cache.learn(
                        await self._api.merge(SECRETS, self._namespace, write.name, write.manifest))
                case "delete":
                    await self._api.delete(SECRETS, self._namespace, write.name, metadata["uid"])
        return done

    def own(self) -> Material | None:
        """Return what the operator shows and trusts, None while there is nothing of use."""
        secret = self._cache.get(self._namespace, secret_name(self.cluster, Kind.OPERATOR, OPERATOR_NAME))
        cluster = self._accepted()
        if secret is None or cluster is None:
            return None
        held = SecretStore(cluster, [secret]).holders().get(Identity(self.cluster, Kind.OPERATOR, OPERATOR_NAME))
        return None if held is None else Material(held.bundle, held.leaf.certificate, held.leaf.key)


class ClusterCertificates:
    """The operator's side of one cluster's certificates: where they are, and its own credentials out of there."""

    def __init__(self, archive: SecretArchive) -> None:
        self.archive = archive
        self.credentials = GivenCredentials(_nobody(archive.cluster))
        self.taken = False

    def take(self) -> None:
        """Use what the operator's Secret holds now."""
        if (material := self.archive.own()) is not None:
            self.credentials.give(material)
            self.taken = True
