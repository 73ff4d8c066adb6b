"""What the Secrets that a cluster names for its etcd say.

They are people's.  The operator's account may read every Secret of the namespace, the writer of a TidemarkCluster may
not: a Secret is used only where its label `tidemark.dev/etcd-for` names the cluster.  Each is read by its name.
Stays out: speaking to etcd (`etcd_access`).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from tidemark_wire.tls import CA_FILE, CERT_FILE, KEY_FILE

from ..certificates.authority import InvalidCertificate, Leaf, belongs, check_bundle
from ..etcd_access import Login, TlsFiles
from ..resources.conditions import ConditionReason as R
from ..resources.labels import Label
from ..status.standing import Refusal
from .api import SECRETS, KubeApi, Object

USER, PASSWORD = "username", "password"
"""Keys of a Secret of type kubernetes.io/basic-auth."""


class Unusable(Exception):
    """A Secret is not there or not what it should be; the text names the field, the Secret and the key."""

    def __init__(self, why: str, reason: R = R.INVALID_SPEC) -> None:
        super().__init__(why)
        self.refusal = Refusal(why, reason)


@dataclass(frozen=True, slots=True)
class EtcdSecrets:
    """How etcd is to be spoken to."""

    tls: TlsFiles | None = None
    login: Login | None = None


IN_THE_CLEAR = EtcdSecrets()


async def read(api: KubeApi, item: Object) -> EtcdSecrets:
    """Return what the Secrets of a TidemarkCluster say.  Raises Unusable, KubeError."""
    secret = await _find(api, item, "tlsSecretRef")
    tls = _tls_files(secret) if secret is not None else None
    user = await _find(api, item, "credentialsSecretRef")
    return EtcdSecrets(tls, Login(user.text(USER), user.text(PASSWORD)) if user is not None else None)


class _Found:
    """A Secret under the field that names it."""

    def __init__(self, field: str, name: str, data: Object) -> None:
        self._field = f"metadataStore.etcd.{field}"
        self.name = name
        self._data = data

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def bytes(self, key: str) -> bytes:
        try:
            return base64.b64decode(self._data[key], validate=True)
        except KeyError:
            raise Unusable(f"{self._field}: Secret {self.name} has no {key}") from None
        except binascii.Error:
            raise self.bad(key) from None

    def text(self, key: str) -> str:
        try:
            return self.bytes(key).decode()
        except UnicodeDecodeError:
            raise self.bad(key) from None

    def bad(self, key: str) -> Unusable:
        return Unusable(f"{self._field}: {key} of Secret {self.name} cannot be used")


async def _find(api: KubeApi, item: Object, field: str) -> _Found | None:
    reference = item["spec"]["metadataStore"]["etcd"].get(field)
    if reference is None:
        return None
    metadata, name = item["metadata"], reference["name"]
    found = await api.get(SECRETS, metadata["namespace"], name)
    labels = (found or {}).get("metadata", {}).get("labels") or {}
    if found is None or labels.get(Label.ETCD_FOR.value) != metadata["name"]:
        # One text for both: the writer of a cluster must not learn by it which Secrets there are.
        label = f"{Label.ETCD_FOR}={metadata['name']}"
        raise Unusable(
            f"metadataStore.etcd.{field}: there is no Secret {name} with the label {label}; create it, or "
            f"`kubectl label secret {name} {label}`", R.SECRET_NOT_LABELLED)
    return _Found(field, name, found.get("data") or {})


def _tls_files(secret: _Found) -> TlsFiles:
    authority = secret.bytes(CA_FILE)
    try:
        check_bundle(authority)
    except InvalidCertificate:
        raise secret.bad(CA_FILE) from None
    if CERT_FILE not in secret and KEY_FILE not in secret:
        return TlsFiles(authority)
    leaf = Leaf(secret.bytes(CERT_FILE), secret.bytes(KEY_FILE))
    try:
        fits = belongs(leaf)
    except InvalidCertificate:
        raise secret.bad(CERT_FILE) from None
    if not fits:
        raise secret.bad(KEY_FILE)
    return TlsFiles(authority, leaf.certificate, leaf.key)
