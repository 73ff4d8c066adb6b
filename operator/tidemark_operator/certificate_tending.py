"""CertificateTender: the active operator renews the cluster's certificates and carries a rotation through.

While a rotation runs it looks every second and asks the nodes what they have loaded; else once a minute.
Stays out: what comes next and how it is made (`certificates`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import grpc.aio
from tidemark_wire.identity import Identity, Kind
from tidemark_wire.tls import Credentials

from .certificates.authority import InvalidCertificate
from .certificates.keeper import Validity, keep, now_utc, rotating, validity
from .certificates.rotation import Policy
from .certificates.store import CertificateStore
from .nodes import NodeLink, NodeLinks

log = logging.getLogger(__name__)

LOOK_S = 1.0
PASS_S = 60.0


class CertificateTender:
    """Tends one store while `active()`.  `validity` is what is shown; `trouble` why nothing goes on, else empty."""

    def __init__(
        self, store: CertificateStore, policy: Callable[[], Policy], links: NodeLinks, tls: Credentials,
        operator: str, active: Callable[[], bool],
    ) -> None:
        self._store = store
        self._policy = policy
        self._links = links
        self._tls = tls
        self._me = Identity(store.cluster, Kind.OPERATOR, operator)
        self._active = active
        self._passed_at = float("-inf")
        self.validity: Validity | None = None
        self.trouble = ""

    async def run(self) -> None:
        while True:
            try:
                if self._active():
                    await self.look()
                else:
                    self.validity = await asyncio.to_thread(validity, self._store)
                self.trouble = ""
            except (InvalidCertificate, OSError) as error:
                if str(error) != self.trouble:
                    log.error("certificates cannot be kept: %s", error)
                self.trouble = str(error)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Take the next steps, when there may be some."""
        if await asyncio.to_thread(rotating, self._store):
            reports: dict[Identity, str] | None = {self._me: self._tls.material.fingerprint, **await self._ask_nodes()}
        elif time.monotonic() - self._passed_at < PASS_S:
            return
        else:
            reports = None
        actions = await asyncio.to_thread(keep, self._store, self._policy(), now_utc(), reports=reports)
        for action in actions:
            log.info("certificates: %s", action)
        self.validity = await asyncio.to_thread(validity, self._store)
        self._passed_at = float("-inf") if actions else time.monotonic()  # one step may make room for the next

    async def _ask_nodes(self) -> dict[Identity, str]:
        """Return what each linked node has loaded; one that is down reads its files when it comes back."""
        links = [link for link in self._links if link.up]
        loaded = await asyncio.gather(*(self._ask(link) for link in links))
        return {
            Identity(self._store.cluster, Kind.NODE, link.node): fingerprint
            for link, fingerprint in zip(links, loaded, strict=True)}

    async def _ask(self, link: NodeLink) -> str:
        try:
            return await link.tls_fingerprint()
        except (grpc.aio.AioRpcError, ConnectionError) as error:
            log.info("%s does not say which certificates it has loaded: %s", link.node, error)
            return ""
