"""SecretStore: the certificates of one cluster as its Secrets hold them; what is put becomes requests.

The CAs with their keys are in one Secret, `<cluster>-ca`, as `ca-NUMBER.crt` and `.key`: two operators cannot both make
the next one.  CAs of somebody else who issued before are there as `others-NUMBER.crt`, while they are replaced.  That
Secret belongs to nobody and outlives the cluster.  Each holder has a Secret of type kubernetes.io/tls with a
ca.crt, which goes with the cluster.  Where cert-manager issues there is no such CA, and what it wrote is in Secrets of
its own, which are only read here.  A change holds of one version of its object only, a deletion of one object.
Stays out: requests (`certificates`), what to write (`..certificates`).
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from tidemark_wire.identity import Identity
from tidemark_wire.tls import CA_FILE, CERT_FILE, KEY_FILE

from ..certificates.authority import (
    Authority,
    InvalidCertificate,
    Leaf,
    belongs,
    ids_in,
    read_authority,
    read_bundle,
    read_leaf,
    read_others,
    vouching,
)
from ..certificates.store import Held
from ..resources.labels import Annotation
from .builders import (
    Cluster,
    Object,
    ca_secret_name,
    issued_elsewhere,
    issued_secret_name,
    labels,
    owner,
    owns,
    secret_name,
)

log = logging.getLogger(__name__)

CA, HOLDER, ISSUED = "ca", "certificate", "issued"
COMPONENT = "app.kubernetes.io/component"
_CA_FILE = re.compile(r"(ca|others)-([0-9]{1,9})\.crt")


@dataclass(frozen=True, slots=True)
class Write:
    """One request.  A merge is of one version of its object and fails on any other; a deletion is of one object."""

    verb: Literal["create", "merge", "delete"]
    manifest: Object = field(repr=False)  # there are keys in it

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


class SecretStore:
    """Made from the Secrets of one moment, and of use for one piece of work."""

    def __init__(self, cluster: Cluster, secrets: Iterable[Object]) -> None:
        self.cluster = cluster.name
        self._cluster = cluster
        self._secrets = {
            secret["metadata"]["name"]: secret for secret in secrets
            if secret["metadata"]["namespace"] == cluster.namespace and self._counts(secret)}
        self._ca_name = ca_secret_name(cluster.name)
        self._elsewhere = issued_elsewhere(cluster.spec)
        self._ca = None if self._elsewhere else self._secrets.get(self._ca_name)
        self.adopts = not self._elsewhere
        self._authorities = self._read_authorities()
        self._ca_changes: dict[str, str | None] = {}
        self._marks: dict[str, str | None] = {}
        self._writes: list[Write] = []

    def _counts(self, secret: Object) -> bool:
        """Say whether it is for this cluster: CAs, and what cert-manager wrote, are for whoever has the name."""
        if component_of(secret) in (CA, ISSUED):
            return True
        return owns(self._cluster, secret)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody is kept out: what was changed meanwhile refuses the requests."""
        yield

    def writes(self) -> list[Write]:
        """Return the requests that make it so, in order."""
        if not self._ca_changes and not self._marks:
            return self._writes
        data = {"data": self._ca_changes} if self._ca_changes else {}
        if self._ca is None:
            made = Write("create", {
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                "metadata": self._metadata(self._ca_name, CA), **data})
        else:
            made = Write("merge", {"metadata": {**_of_version(self._ca), "annotations": self._marks}, **data})
        return [made, *self._writes]

    # --- authorities ----------------------------------------------------------------------------------------------

    def authorities(self) -> list[Authority]:
        """Return the CAs, oldest first.  Raises InvalidCertificate."""
        return [authority for _number, authority in sorted(self._authorities.items())]

    def retiring(self) -> frozenset[str]:
        """Return the id of the newest CA while the Secret asks for another one."""
        asked = self._ca is not None and (
            self._ca["metadata"].get("annotations", {}).get(Annotation.ROTATE_CA.value) == "true")
        return frozenset({self.authorities()[-1].id} if asked and self._authorities else ())

    def put_authority(self, authority: Authority) -> None:
        number = max(self._authorities, default=0) + 1
        self._authorities[number] = authority
        certificate, key = _files_of(number, authority)
        self._ca_changes[certificate] = _encode(authority.certificate)
        if not authority.elsewhere:
            self._ca_changes[key] = _encode(authority.key)
        if self.retiring():
            self._marks[Annotation.ROTATE_CA.value] = None  # in the same request: asked once is done once

    def drop_authority(self, authority: str) -> None:
        for number, known in list(self._authorities.items()):
            if known.id == authority:
                del self._authorities[number]
                certificate, key = _files_of(number, known)
                self._ca_changes |= {certificate: None} if known.elsewhere else {certificate: None, key: None}

    def retire(self, authority: str) -> None:
        """Note that the newest CA is to be replaced."""
        if self._authorities and self.authorities()[-1].id == authority:
            self._marks[Annotation.ROTATE_CA.value] = "true"

    def _read_authorities(self) -> dict[int, Authority]:
        found = {}
        try:
            for name in (self._ca or {}).get("data") or {}:
                if match := _CA_FILE.fullmatch(name):
                    certificate = _decode(self._ca, name)
                    found[int(match[2])] = read_others(certificate) if match[1] == "others" else read_authority(
                        certificate, _decode(self._ca, name.replace(".crt", ".key")))
        except InvalidCertificate as error:
            raise InvalidCertificate(f"Secret {self._ca_name}: {error}") from error
        return found

    # --- holders --------------------------------------------------------------------------------------------------

    def holders(self) -> dict[Identity, Held]:
        """Return who holds what; what cannot be read is as nothing, and is written anew."""
        found = {}
        for name, secret in self._secrets.items():
            if component_of(secret) != HOLDER:
                continue
            try:
                held = read_issued(secret) if self._elsewhere else _read(secret)
            except InvalidCertificate as error:
                log.warning("Secret %s holds no certificate, it gets another: %s", name, error)
                continue
            identity = held.facts.subject.identity
            if name == secret_name(self.cluster, identity.kind, identity.name):
                found[identity] = held
        return found

    def offers(self) -> dict[Identity, Held] | None:
        """Return what cert-manager has issued, where it does; what cannot be used is left out."""
        if not self._elsewhere:
            return None
        found = {}
        for name, secret in self._secrets.items():
            if component_of(secret) == ISSUED:
                with suppress(InvalidCertificate):
                    held = read_issued(secret)
                    identity = held.facts.subject.identity
                    if identity.cluster == self.cluster and name == issued_secret_name(*identity):
                        found[identity] = held
        return found

    def put_holder(self, identity: Identity, leaf: Leaf, bundle: bytes) -> None:
        """Replace a holder's three files in one step."""
        data = {CERT_FILE: _encode(leaf.certificate), KEY_FILE: _encode(leaf.key), CA_FILE: _encode(bundle)}
        name = secret_name(self.cluster, identity.kind, identity.name)
        known = self._secrets.get(name)
        if known is None:
            metadata = {**self._metadata(name, HOLDER), "ownerReferences": owner(self._cluster)}
            self._writes.append(Write("create", {
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}))
        else:
            self._writes.append(Write("merge", {"metadata": _of_version(known), "data": data}))

    def drop_holder(self, identity: Identity) -> None:
        name = secret_name(self.cluster, identity.kind, identity.name)
        if name in self._secrets:
            self._writes.append(Write("delete", {"metadata": _of_version(self._secrets[name])}))

    def _metadata(self, name: str, component: str) -> Object:
        return {
            "name": name, "namespace": self._cluster.namespace,
            "labels": {**labels(self._cluster), COMPONENT: component}}


def _files_of(number: int, authority: Authority) -> tuple[str, str]:
    stem = "others" if authority.elsewhere else "ca"
    return f"{stem}-{number}.crt", f"{stem}-{number}.key"


def component_of(secret: Object) -> str:
    """Return what a Secret is for, as it is labelled."""
    return str(secret["metadata"].get("labels", {}).get(COMPONENT, ""))


def read_issued(secret: Object) -> Held:
    """Return what cert-manager wrote.  Raises InvalidCertificate: it is nothing that a node could use."""
    read_bundle(_decode(secret, CA_FILE))
    held = _read(secret)
    if not vouching(held.leaf.certificate, held.bundle):
        raise InvalidCertificate(f"{CA_FILE} holds no CA that vouches for {CERT_FILE}")
    return held


def _read(secret: Object) -> Held:
    leaf, bundle = Leaf(_decode(secret, CERT_FILE), _decode(secret, KEY_FILE)), _decode(secret, CA_FILE)
    if not belongs(leaf):
        raise InvalidCertificate(f"{KEY_FILE} is not the key of {CERT_FILE}")
    return Held(leaf, read_leaf(leaf.certificate), bundle, ids_in(bundle))


def _of_version(secret: Object) -> Object:
    return {name: secret["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decode(secret: Object | None, file: str) -> bytes:
    try:
        return base64.b64decode((secret or {})["data"][file], validate=True)
    except (KeyError, TypeError, binascii.Error) as error:
        raise InvalidCertificate(f"{file} is missing or no base64") from error
