"""Informer: keeps a cache of one kind in one namespace, selected by labels, by list and watch.

Stays out: what follows from a change.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from .api import Kind, KubeApi, KubeAway, KubeRefused, Object
from .cache import Cache
from .health import WATCH_EVENT

log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.2, 5.0
RETRY_UNKNOWN_S = 60.0
"""An optional kind that the API server does not know may be installed one day."""


class Informer:
    """Run `run` as a task.  A list that repeats what is known tells nobody anything."""

    def __init__(
        self, api: KubeApi, kind: Kind, namespace: str, labels: str, cache: Cache, on_change: Callable[[Object], None],
        *, optional: bool = False,
    ) -> None:
        self._api = api
        self._kind = kind
        self._namespace = namespace
        self._labels = labels
        self._cache = cache
        self._on_change = on_change
        self._optional = optional
        self._told = ""

    async def run(self) -> None:
        delay_s = RETRY_FIRST_S
        while True:
            try:
                since = await self.list()
                delay_s = RETRY_FIRST_S
                while True:  # a watch that ends goes on where it was
                    since = await self._watch(since)
            except KubeRefused as refused:
                if refused.code == 404 and self._optional:
                    delay_s = RETRY_UNKNOWN_S
                    log.debug("the API server knows no %s", self._kind.plural)
                elif refused.code != 410:
                    self._tell(str(refused))
            except KubeAway:
                self._tell("the API server is away")
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            delay_s = min(RETRY_MAX_S, 2 * delay_s)

    async def list(self) -> str:
        """Look at everything; return the version of the look."""
        items, version = await self._api.list(self._kind, self._namespace, self._labels)
        self._heard()
        for item in self._cache.replace(self._namespace, items, int(version)):
            self._on_change(item)
        return version

    async def _watch(self, since: str) -> str:
        async for what, item in self._api.watch(self._kind, self._namespace, since, self._labels):
            self._heard()
            since = item["metadata"]["resourceVersion"]
            if what == "BOOKMARK":
                continue
            if self._cache.forget(item) if what == "DELETED" else self._cache.learn(item):
                self._on_change(item)
        return since

    def _tell(self, trouble: str) -> None:
        """Say it when it begins, when it changes and when it is over."""
        where = self._namespace or "all namespaces"
        if trouble and trouble != self._told:
            log.warning("%s of %s are not followed: %s", self._kind.plural, where, trouble)
        elif self._told and not trouble:
            log.info("%s of %s are followed again", self._kind.plural, where)
        self._told = trouble

    def _heard(self) -> None:
        self._tell("")
        WATCH_EVENT.labels(self._kind.kind).set(time.time())
