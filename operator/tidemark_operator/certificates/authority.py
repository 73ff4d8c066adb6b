"""The CA and what it issues, as PEM: ECDSA P-256, no file, no clock of its own.

Stays out: when to issue what (`rotation`), where it is kept (`files`).
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tidemark_wire.identity import Kind, identity_of

from .subject import Subject

CLOCK_SKEW = timedelta(minutes=5)
"""A certificate is valid this much earlier than it was made: clocks differ."""

SERVERS = frozenset({Kind.NODE, Kind.OPERATOR})
_NAME_LENGTH_MAX = 64  # of a common name; the URI is what counts


class InvalidCertificate(ValueError):
    """A PEM text is not a certificate of ours; the message says why."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA with its key.  `id` is that of its key.  Without a key it is CAs of somebody else, as one."""

    id: str
    created: datetime
    expires: datetime
    certificate: bytes
    key: bytes = field(repr=False)

    @property
    def elsewhere(self) -> bool:
        """Say whether it can only be trusted: its key is somewhere else."""
        return not self.key


@dataclass(frozen=True, slots=True)
class Leaf:
    """An issued certificate with its key."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class LeafFacts:
    """What an issued certificate says."""

    subject: Subject
    issuer: str
    created: datetime
    expires: datetime


@dataclass(frozen=True, slots=True)
class Trusted:
    """The certificate of a CA, whoever's, as PEM."""

    certificate: bytes
    expires: datetime


def create_authority(cluster: str, now: datetime, lifetime: timedelta) -> Authority:
    """Make a CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Tidemark CA of {cluster}"[:_NAME_LENGTH_MAX])])
    certificate = (
        _builder(name, name, now, now + lifetime)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return read_authority(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def issue(authority: Authority, subject: Subject, now: datetime, lifetime: timedelta) -> Leaf:
    """Issue a certificate; it does not outlive its CA."""
    signer = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "we made it"
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    identity = subject.identity
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.kind in SERVERS:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(str(identity))]
    names += [x509.DNSName(name) for name in subject.dns]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in subject.ips]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.name[:_NAME_LENGTH_MAX])])
    certificate = (
        _builder(name, issuer.subject, now, min(now + lifetime, authority.expires))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)  # type: ignore[arg-type]
        .sign(signer, hashes.SHA256())
    )
    return Leaf(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def read_authority(certificate: bytes, key: bytes) -> Authority:
    """Return a stored CA.  Raises InvalidCertificate."""
    read = _load(certificate)
    return Authority(
        _id_of(read), read.not_valid_before_utc + CLOCK_SKEW, read.not_valid_after_utc, certificate, key)


def read_others(bundle: bytes) -> Authority:
    """Return CAs of somebody else, all in one.  Raises InvalidCertificate."""
    found = _load_authorities(bundle)
    known = "".join(sorted(_hash_of(each) for each in found))
    return Authority(
        f"others-{hashlib.sha256(known.encode()).hexdigest()[:16]}",
        min(each.not_valid_before_utc for each in found) + CLOCK_SKEW, max(each.not_valid_after_utc for each in found),
        bundle, b"")


def read_leaf(certificate: bytes) -> LeafFacts:
    """Return what an issued certificate says.  Raises InvalidCertificate."""
    read = _load(certificate)
    try:
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        issuer = read.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except x509.ExtensionNotFound as error:
        raise InvalidCertificate(f"the certificate lacks {error.oid}") from error
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    identity = identity_of(uris[0]) if len(uris) == 1 else None
    if identity is None or issuer is None:
        raise InvalidCertificate(f"the certificate names {uris}, not one identity of a cluster")
    subject = Subject(
        identity, tuple(names.get_values_for_type(x509.DNSName)),
        tuple(str(address) for address in names.get_values_for_type(x509.IPAddress)))
    return LeafFacts(subject, issuer.hex(), read.not_valid_before_utc + CLOCK_SKEW, read.not_valid_after_utc)


def belongs(leaf: Leaf) -> bool:
    """Say whether the key is the certificate's own."""
    try:
        key = serialization.load_pem_private_key(leaf.key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return key.public_key() == _load(leaf.certificate).public_key()


def bundle_of(authorities: Iterable[Authority | Trusted]) -> bytes:
    """Return the CA certificates as one PEM file."""
    return b"".join(authority.certificate for authority in authorities)


def ids_in(bundle: bytes) -> frozenset[str]:
    """Return the ids of the CAs in a PEM file.  Raises InvalidCertificate."""
    try:
        return frozenset(_id_of(read) for read in x509.load_pem_x509_certificates(bundle))
    except ValueError as error:
        raise InvalidCertificate(f"the bundle cannot be read: {error}") from error


def read_bundle(bundle: bytes) -> dict[str, Trusted]:
    """Return the CAs in a PEM file by the hash of their certificate: one that is renewed with its key is another one.

    Raises InvalidCertificate.
    """
    return {
        _hash_of(read): Trusted(read.public_bytes(serialization.Encoding.PEM), read.not_valid_after_utc)
        for read in _load_authorities(bundle)}


def vouching(certificate: bytes, bundle: bytes) -> frozenset[str]:
    """Return which CAs of a PEM file, by their hash, vouch for a certificate, some through others in its own file.

    Raises InvalidCertificate.
    """
    authorities = _load_authorities(bundle)
    try:
        shown, *between = x509.load_pem_x509_certificates(certificate)
    except ValueError as error:
        raise InvalidCertificate(f"the certificate cannot be read: {error}") from error
    found, reached = set(), [shown]
    while reached:
        one = reached.pop()
        found |= {_hash_of(authority) for authority in authorities if _issued(authority, one)}
        above = [each for each in between if _issued(each, one)]
        between = [each for each in between if each not in above]
        reached += above
    return frozenset(found)


def hash_of(certificate: bytes) -> str:
    """Return the hash of a certificate.  Raises InvalidCertificate."""
    return _hash_of(_load(certificate))


def check_bundle(bundle: bytes) -> None:
    """Raise InvalidCertificate unless a PEM file holds certificates, of whatever CA."""
    try:
        x509.load_pem_x509_certificates(bundle)
    except ValueError as error:
        raise InvalidCertificate(f"the bundle cannot be read: {error}") from error


def _load(certificate: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise InvalidCertificate(f"the certificate cannot be read: {error}") from error


def _load_authorities(bundle: bytes) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except ValueError as error:
        raise InvalidCertificate(f"the bundle cannot be read: {error}") from error
    for read in found:
        try:
            is_authority = read.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except x509.ExtensionNotFound:
            is_authority = False
        if not is_authority:
            raise InvalidCertificate(f"the bundle holds a certificate that is no CA's: {read.subject.rfc4514_string()}")
    return found


def _issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _hash_of(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def _id_of(certificate: x509.Certificate) -> str:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest.hex()
    except x509.ExtensionNotFound as error:
        raise InvalidCertificate("the CA certificate has no key identifier") from error


def _builder(subject: x509.Name, issuer: x509.Name, now: datetime, expires: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(expires)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        encipher_only=False, decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
