"""cert-manager, as far as tests need it: signs what Certificates ask for, and writes the Secrets they name.

It writes as the real one does: by server-side apply, three files, the labels of the template, no owner.
Stays out: issuers, CertificateRequests, renewal by time.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from .client import Kube

Object = dict[str, Any]

RESOURCE = "certificates.cert-manager.io"
DEFINITION = Path(__file__).with_name("cert_manager_crd.yaml")
USAGES = {"client auth": ExtendedKeyUsageOID.CLIENT_AUTH, "server auth": ExtendedKeyUsageOID.SERVER_AUTH}
_DURATION = re.compile(r"([0-9]+)h0m0s")


class Signer:
    """A CA; with `between` another one that it vouches for signs, whose certificate goes with what is signed.

    Without `ca` it is none: as a SelfSigned issuer, whose certificates vouch for themselves.
    """

    def __init__(self, name: str, *, between: bool = False, ca: bool = True) -> None:
        self._ca = ca
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.root = self._own(self._name, self._key, self._name, self._key)
        self._chain: list[x509.Certificate] = []
        self._issuer = self.root
        if between:
            key, below = ec.generate_private_key(ec.SECP256R1()), _name(f"{name} below")
            self._issuer = self._own(below, key, self._name, self._key)
            self._chain, self._key, self._name = [self._issuer], key, below

    def _own(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, issuer: x509.Name, by: ec.EllipticCurvePrivateKey,
    ) -> x509.Certificate:
        return (
            _builder(subject, issuer, key, timedelta(days=365))
            .add_extension(x509.BasicConstraints(ca=self._ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(by, hashes.SHA256()))

    @property
    def ca_file(self) -> bytes:
        return self.root.public_bytes(serialization.Encoding.PEM)

    def files(self, certificate: Object) -> dict[str, bytes]:
        """Return tls.crt, tls.key and ca.crt for what a Certificate asks for."""
        spec, key = certificate["spec"], ec.generate_private_key(ec.SECP256R1())
        hours = _DURATION.fullmatch(spec["duration"])
        assert hours, spec["duration"]
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(each) for each in spec.get("uris", ())]
        names += [x509.DNSName(each) for each in spec.get("dnsNames", ())]
        usages = [USAGES[each] for each in spec["usages"] if each in USAGES]
        signed = (
            _builder(_name(spec["commonName"]), self._name, key, timedelta(hours=int(hours[1])))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256()))
        chain: Sequence[x509.Certificate] = [signed, *self._chain]
        return {
            "tls.crt": b"".join(each.public_bytes(serialization.Encoding.PEM) for each in chain),
            "tls.key": key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
            "ca.crt": self.ca_file}

    def secret(self, certificate: Object) -> Object:
        metadata = certificate["metadata"]
        data = {name: base64.b64encode(text).decode() for name, text in self.files(certificate).items()}
        return {
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data,
            "metadata": {
                "name": certificate["spec"]["secretName"], "namespace": metadata["namespace"],
                "labels": {"controller.cert-manager.io/fao": "true", **certificate["spec"]["secretTemplate"]["labels"]},
                "annotations": {"cert-manager.io/certificate-name": metadata["name"]}}}


class CertManager:
    """Answers Certificates of one namespace while it runs; `signer` may be another one at any time."""

    def __init__(self, kube: Kube, signer: Signer) -> None:
        self._kube = kube
        self.signer = signer
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            async for kind, certificate in self._kube.watch(RESOURCE):
                secret = certificate["spec"]["secretName"]
                if kind != "DELETED" and await self._kube.find("secrets", secret) is None:
                    await self.issue(certificate)

    async def issue(self, certificate: Object) -> None:
        await self._kube.apply(self.signer.secret(certificate), manager="cert-manager-certificates-issuing")

    async def renew(self) -> None:
        """Issue everything anew, one by one."""
        for certificate in await self._kube.list(RESOURCE):
            await self.issue(certificate)


async def install_definition(kube: Kube) -> None:
    """Make the API server know Certificates."""
    from .client import condition

    definition = yaml.safe_load(DEFINITION.read_text(encoding="utf-8"))
    await kube.apply(definition)
    await kube.wait(
        "customresourcedefinitions.apiextensions.k8s.io", definition["metadata"]["name"],
        lambda found: condition(found, "Established") == "True")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, lasts: timedelta,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + lasts))
