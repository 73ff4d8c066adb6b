"""Secrets as an API server gives them, and certificates that may be in them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark_operator.certificates.authority import create_authority, issue
from tidemark_operator.certificates.subject import Subject
from tidemark_wire.identity import Identity, Kind

_AUTHORITY = create_authority("etcd", datetime.now(UTC), timedelta(days=1))
_LEAF = issue(_AUTHORITY, Subject(Identity("prod", Kind.CLIENT, "any")), datetime.now(UTC), timedelta(days=1))
CA, CERT, KEY = _AUTHORITY.certificate.decode(), _LEAF.certificate.decode(), _LEAF.key.decode()


class Secrets:
    """The Secrets of the namespace `data`: name, key, text; each is labelled for the etcd of `labelled_for`."""

    def __init__(self, **secrets: dict[str, str]) -> None:
        self.secrets = secrets
        self.labelled_for: str | None = "prod"

    async def get(self, kind: Any, namespace: str, name: str) -> dict[str, Any] | None:
        assert (kind.plural, namespace) == ("secrets", "data")
        found = self.secrets.get(name)
        labels = {"tidemark.dev/etcd-for": self.labelled_for} if self.labelled_for is not None else None
        return None if found is None else {"metadata": {"name": name, "labels": labels}, "data": {
            key: base64.b64encode(text.encode()).decode() for key, text in found.items()}}
