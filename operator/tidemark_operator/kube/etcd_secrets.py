"""What the Secrets that a cluster names for its etcd say.

They are people's, so no label selects them: each is read by its name, when the cluster is looked at.
Stays out: speaking to etcd (`etcd_access`).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from tidemark_wire.tls import CA_FILE, CERT_FILE, KEY_FILE

from ..certificates.authority import InvalidCertificate, Leaf, belongs, check_bundle
from ..etcd_access import Login, TlsFiles
from .api import SECRETS, KubeApi, Object

USER, PASSWORD = "username", "password"
"""Keys of a Secret of type kubernetes.io/basic-auth."""


class Unusable(Exception):
    """A Secret is not there or not what it should be; the message names the field, the Secret and the key."""


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
    found = await api.get(SECRETS, item["metadata"]["namespace"], reference["name"])
    if found is None:
        raise Unusable(f"metadataStore.etcd.{field}: there is no Secret {reference['name']}")
    return _Found(field, reference["name"], found.get("data") or {})


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
