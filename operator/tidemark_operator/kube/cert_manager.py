"""Certificates of cert-manager: what it is asked for, what of that is not there yet, and why.

It is asked for the same names, addresses, usages and identities that the operator's own CA puts into certificates, one
Certificate for each holder.  What it writes is not mounted: certificates of two CAs may be there at once, and each
comes with its own CA alone.  The holders' Secrets are made of it instead (`certificates.takeover`).
Pure but for `request` and `withdraw`.  Stays out: what is done with the Secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from ..certificates.authority import SERVERS, InvalidCertificate
from ..certificates.keeper import answers
from ..certificates.rotation import Policy
from ..certificates.store import Lack
from ..certificates.subject import Subject
from ..condition_memory import some
from ..resources.conditions import ConditionReason
from .acts import Act, applied, carry_out, deletion
from .api import CERTIFICATES, SECRETS, KubeApi, KubeRefused
from .builders import Cluster, Object, certificate_name, issued_secret_name, labels, metadata_of, owner, owns
from .secret_store import COMPONENT, ISSUED, component_of, read_issued

NOT_INSTALLED = (
    "cert-manager is not installed: the API server knows no certificates of cert-manager.io/v1. Install cert-manager, "
    "or set security.tls.mode to Managed")
_COMMON_NAME_LENGTH_MAX = 64
_TOLD_LENGTH_MAX = 200


def certificate(cluster: Cluster, subject: Subject, policy: Policy) -> Object:
    """Return the Certificate of one holder."""
    issuer = cluster.spec["security"]["tls"]["issuerRef"]
    identity = subject.identity
    mine = {**labels(cluster), COMPONENT: ISSUED}
    spec: Object = {
        "secretName": issued_secret_name(*identity),
        "secretTemplate": {"labels": mine},
        "commonName": identity.name[:_COMMON_NAME_LENGTH_MAX],
        "uris": [str(identity)],
        "duration": _duration(policy.certificate),
        "renewBefore": _duration(policy.renew_before),
        "usages": ["digital signature", "client auth", *(["server auth"] if identity.kind in SERVERS else [])],
        "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
        "revisionHistoryLimit": 1,
        "issuerRef": {
            "name": issuer["name"], "kind": issuer.get("kind", "Issuer"),
            "group": issuer.get("group", "cert-manager.io")},
    }
    if subject.dns:
        spec["dnsNames"] = list(subject.dns)
    if subject.ips:
        spec["ipAddresses"] = list(subject.ips)
    metadata = {**metadata_of(cluster, certificate_name(*identity)), "labels": mine}
    return {"apiVersion": CERTIFICATES.api_version, "kind": CERTIFICATES.kind, "metadata": metadata, "spec": spec}


def plan(
    cluster: Cluster, subjects: Iterable[Subject], policy: Policy, certificates: Mapping[str, Object],
    secrets: Mapping[str, Object],
) -> list[Act]:
    """Return what is to be done, in order; nothing when everything is as it should be.

    cert-manager leaves Secrets behind: those of this cluster go with it, as they hold keys.
    """
    wanted = [certificate(cluster, subject, policy) for subject in subjects]
    names = {each["metadata"]["name"] for each in wanted}
    files = {each["spec"]["secretName"] for each in wanted}
    acts = [act for each in wanted for act in applied(cluster, each, certificates)]
    for name, live in certificates.items():
        if name not in names and owns(cluster, live) and "deletionTimestamp" not in live["metadata"]:
            acts.append(deletion(CERTIFICATES.kind, live, "cert-manager is not to issue it"))
    for name, secret in secrets.items():
        if component_of(secret) != ISSUED or "deletionTimestamp" in secret["metadata"]:
            continue
        if name not in files:
            acts.append(deletion(SECRETS.kind, secret, "cert-manager is not to issue it"))
        elif not owns(cluster, secret):
            others = [
                each for each in secret["metadata"].get("ownerReferences", ()) if each.get("kind") != "TidemarkCluster"]
            mine = [{**each, "controller": False, "blockOwnerDeletion": False} for each in owner(cluster)]
            acts.append(Act("merge", {"kind": SECRETS.kind, "metadata": {
                "name": name, "namespace": cluster.namespace, "ownerReferences": [*others, *mine]}},
                secret["metadata"]["uid"], "it goes with the cluster"))
    return acts


def lack(
    cluster: Cluster, subjects: Iterable[Subject], certificates: Mapping[str, Object], secrets: Mapping[str, Object],
    now: datetime,
) -> Lack | None:
    """Return what is not issued yet, or cannot be used; None where nothing is lacking."""
    missing, unusable = [], []
    for subject in subjects:
        name, file = certificate_name(*subject.identity), issued_secret_name(*subject.identity)
        live, secret = certificates.get(name), secrets.get(file)
        if live is not None and not owns(cluster, live):
            missing.append(f"Certificate {name} belongs to somebody else")
        elif secret is None:
            missing.append(f"Secret {file}{_told(live)}")
        elif why := _unusable(subject, secret, now):
            unusable.append(f"Secret {file}: {why}{_told(live)}")
    if unusable:
        return Lack(ConditionReason.SECRET_INVALID, f"what cert-manager wrote cannot be used: {some(unusable)}")
    if missing:
        return Lack(ConditionReason.ISSUER_NOT_READY, (
            f"cert-manager has not written {some(missing)}: see `kubectl describe certificate`, and the issuer that "
            "security.tls.issuerRef names"))
    return None


async def request(
    api: KubeApi, cluster: Cluster, subjects: Sequence[Subject], policy: Policy, secrets: Mapping[str, Object],
    now: datetime,
) -> Lack | None:
    """Have cert-manager asked for what is wanted; return what is not there.  Raises KubeAway."""
    try:
        certificates = await _certificates(api, cluster)
        await carry_out(api, plan(cluster, subjects, policy, certificates, secrets))
    except KubeRefused as refused:
        return Lack(ConditionReason.ISSUER_NOT_READY, NOT_INSTALLED if refused.code == 404 else (
            f"the Certificates of cert-manager cannot be kept: {refused.message}"))
    return await asyncio.to_thread(lack, cluster, subjects, certificates, secrets, now)  # it verifies keys


async def withdraw(api: KubeApi, cluster: Cluster, secrets: Mapping[str, Object]) -> None:
    """Leave nothing of what cert-manager was asked for, nor of what it wrote.  Raises KubeError."""
    try:
        certificates = await _certificates(api, cluster)
    except KubeRefused as refused:
        if refused.code != 404:
            raise
        certificates = {}  # cert-manager is gone altogether
    await carry_out(api, plan(cluster, (), Policy(), certificates, secrets))


async def _certificates(api: KubeApi, cluster: Cluster) -> dict[str, Object]:
    """Return all of the namespace: whose name is taken by somebody else is told too."""
    found, _version = await api.list(CERTIFICATES, cluster.namespace)
    return {each["metadata"]["name"]: each for each in found}


def _unusable(subject: Subject, secret: Object, now: datetime) -> str:
    try:
        held = read_issued(secret)
    except InvalidCertificate as error:
        return str(error)
    if held.facts.subject.identity != subject.identity:
        return f"it is the certificate of {held.facts.subject.identity}, not of {subject.identity}"
    if not answers(held, subject):
        return "the issuer left out names that it was asked for"
    return "it has expired" if held.facts.expires <= now else ""


def _told(certificate: Object | None) -> str:
    """Return what cert-manager says of a Certificate that is not ready."""
    for each in (certificate or {}).get("status", {}).get("conditions", ()):
        if each.get("type") == "Ready" and each.get("status") != "True" and each.get("message"):
            return f" ({each['message'][:_TOLD_LENGTH_MAX]})"
    return ""


def _duration(length: timedelta) -> str:
    """As cert-manager writes it itself: else its way and ours would replace each other for ever."""
    return f"{length // timedelta(hours=1)}h0m0s"
