"""CertificateTender: the active operator renews the cluster's certificates and carries a rotation through.

While a rotation runs it looks every second or few and asks the nodes what they have loaded; else once a minute, or when
it is poked.
Stays out: what comes next and how it is made (`certificates`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Protocol, TypeVar

import grpc.aio
from tidemark_wire.identity import Identity, Kind
from tidemark_wire.tls import Credentials

from .certificates.authority import InvalidCertificate
from .certificates.keeper import Validity, keep, now_utc, planned, rotating, validity
from .certificates.rotation import Policy
from .certificates.store import CertificateStore, Lack
from .certificates.subject import Subject
from .nodes import NodeLink, NodeLinks

log = logging.getLogger(__name__)

LOOK_S = 1.0
PASS_S = 60.0
PATIENT_S = 10.0

T = TypeVar("T")


class Archive(Protocol):
    """Where the certificates of one cluster are, reached without holding up the loop.

    `overlap` is how long two CAs are trusted, for copies that nobody reports on; `watched` says that the tender is
    poked when somebody else changes something.  `wanted` are those who shall hold certificates, None for those who do.
    """

    cluster: str
    overlap: timedelta

    @property
    def watched(self) -> bool: ...

    def wanted(self) -> Iterable[Subject] | None: ...

    def usable(self) -> bool:
        """Say whether anything may be changed now."""
        ...

    async def request(self, policy: Policy) -> Lack | None:
        """Where somebody else issues, have him asked for what is wanted; return what is not there.  Raises OSError."""
        ...

    async def read(self, look: Callable[[CertificateStore], T]) -> T:
        """Return what `look` finds in what was seen last."""
        ...

    async def change(self, work: Callable[[CertificateStore], T]) -> T:
        """Have `work` done on what is there now.  Raises InvalidCertificate, OSError."""
        ...


class FileArchive:
    """A store in files: whoever holds some goes on to do so."""

    overlap, watched = timedelta(0), False

    def __init__(self, store: CertificateStore) -> None:
        self.cluster = store.cluster
        self._store = store

    def wanted(self) -> Iterable[Subject] | None:
        return None

    def usable(self) -> bool:
        return True

    async def request(self, policy: Policy) -> Lack | None:
        """Nobody else issues."""
        return None

    async def read(self, look: Callable[[CertificateStore], T]) -> T:
        return await asyncio.to_thread(look, self._store)

    change = read


class CertificateTender:
    """Tends one archive while `active()`.

    `validity` is what is shown; `trouble` why nothing goes on, else empty; `lack` what somebody else has not issued.
    """

    def __init__(
        self, archive: Archive, policy: Callable[[], Policy], links: NodeLinks, tls: Credentials,
        operator: str, active: Callable[[], bool], changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._archive = archive
        self._policy = policy
        self._links = links
        self._tls = tls
        self._me = Identity(archive.cluster, Kind.OPERATOR, operator)
        self._active = active
        self._changed = changed
        self._poked = asyncio.Event()
        self._passed_at = float("-inf")
        self._rotating = False
        self.validity: Validity | None = None
        self.trouble = ""
        self.lack: Lack | None = None

    def poke(self) -> None:
        """Look at once: somebody else shall hold a certificate, or what is stored has changed."""
        self._passed_at = float("-inf")
        self._poked.set()

    async def run(self) -> None:
        pause_s = LOOK_S
        while True:
            shown = self.validity, self.trouble, self.lack
            self._poked.clear()
            try:
                if self._may_change():
                    await self.look()
                else:
                    self.validity = await self._archive.read(validity)
                self.trouble = ""
            except (InvalidCertificate, OSError) as error:
                if str(error) != self.trouble:
                    log.error("certificates cannot be kept: %s", error)
                self.trouble = str(error)
            if shown != (self.validity, self.trouble, self.lack):
                self._changed()
            pause_s = self._pause(pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._poked.wait()
            if self.trouble or self.lack is not None:
                await asyncio.sleep(LOOK_S)  # whoever pokes may be what it comes from

    def _may_change(self) -> bool:
        return self._active() and self._archive.usable()

    def _pause(self, last_s: float) -> float:
        """Return how long to wait for a poke: who is told of changes need not look for them."""
        if self.trouble or (self.lack is not None and self._passed_at != float("-inf")):
            return min(PATIENT_S, 2 * last_s)
        if not self._archive.watched or (self._passed_at == float("-inf") and self._may_change()):
            return LOOK_S
        return min(PATIENT_S, 2 * last_s) if self._rotating else PASS_S

    async def look(self) -> None:
        """Take the next steps, when there may be some."""
        self._rotating = await self._archive.read(rotating)
        if self._rotating:
            reports: dict[Identity, str] | None = {self._me: self._tls.material.fingerprint, **await self._ask_nodes()}
        elif self.lack is None and time.monotonic() - self._passed_at < PASS_S:
            return
        else:
            reports = None
        self._passed_at = time.monotonic()
        policy, wanted = replace(self._policy(), overlap=self._archive.overlap), self._archive.wanted()
        shall, only = list(wanted or ()), wanted is not None
        plan = partial(planned, policy=policy, now=now_utc(), wanted=shall, reports=reports, only_wanted=only)
        if await self._archive.read(plan):
            work = partial(keep, policy=policy, now=now_utc(), wanted=shall, reports=reports, only_wanted=only)
            for action in await self._archive.change(work):
                log.info("certificates: %s", action)
            self._passed_at = float("-inf")  # one step may make room for the next
        self.validity = await self._archive.read(validity)
        self.lack = await self._archive.request(policy)  # last: what is there is used, though nobody can be asked

    async def _ask_nodes(self) -> dict[Identity, str]:
        """Return what each linked node has loaded; one that is down reads its files when it comes back."""
        links = [link for link in self._links if link.up]
        loaded = await asyncio.gather(*(self._ask(link) for link in links))
        return {
            Identity(self._archive.cluster, Kind.NODE, link.node): fingerprint
            for link, fingerprint in zip(links, loaded, strict=True)}

    async def _ask(self, link: NodeLink) -> str:
        try:
            return await link.tls_fingerprint()
        except (grpc.aio.AioRpcError, ConnectionError) as error:
            log.info("%s does not say which certificates it has loaded: %s", link.node, error)
            return ""
