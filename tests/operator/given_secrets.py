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
    """The Secrets of the namespace `data`: name, key, text."""

    def __init__(self, **secrets: dict[str, str]) -> None:
        self.secrets = secrets

    async def get(self, kind: Any, namespace: str, name: str) -> dict[str, Any] | None:
        assert (kind.plural, namespace) == ("secrets", "data")
        found = self.secrets.get(name)
        return None if found is None else {"data": {
            key: base64.b64encode(text.encode()).decode() for key, text in found.items()}}
