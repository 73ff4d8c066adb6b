"""kopf: every event of our kinds becomes a call, nothing else.

Only `on.event` is used: it writes no annotations, no finalizers and no progress on the objects of people.
Stays out: what an event means (`operator`), the loop this runs in (`kopf_thread`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from ..resources.kinds import WRITTEN
from .api import CUSTOM, Kind

KINDS = tuple(CUSTOM[name] for name in WRITTEN)
"""Shards are written by the operator alone: an informer sees whoever else writes one."""
PAUSES_S = (1.0, 2.0, *[5.0] * 10)
"""Between attempts to reach the API server: kopf would wait up to 21 s, and so would people's specs."""

Sink = Callable[[Kind, str, dict[str, Any]], None]


def registry(sink: Sink, configuration: Configuration) -> kopf.OperatorRegistry:
    """Return handlers that call `sink(kind, "ADDED" | "MODIFIED" | "DELETED" | "", object)`."""
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    def login(**_: Any) -> kopf.ConnectionInfo:
        token = str(configuration.api_key.get("BearerToken") or "").rpartition(" ")[2]
        return kopf.ConnectionInfo(
            server=configuration.host, ca_path=configuration.ssl_ca_cert or None, insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file or None, private_key_path=configuration.key_file or None,
            scheme="Bearer" if token else None, token=token or None)

    for each in KINDS:
        group, _, version = each.api_version.partition("/")

        @kopf.on.event(group, version, each.plural, registry=made, id=f"see-{each.plural}")
        async def see(type: str | None, body: kopf.Body, kind: Kind = each, **_: Any) -> None:
            sink(kind, type or "", dict(body))

    return made


def settings() -> kopf.OperatorSettings:
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.scanning.disabled = True
    made.networking.request_timeout = 30
    made.networking.error_backoffs = PAUSES_S
    made.process.ultimate_exiting_timeout = None
    return made
