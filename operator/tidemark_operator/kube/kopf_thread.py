"""KopfThread: kopf in a loop of its own, started again whenever it ends.

When kopf ends it cancels every task it finds in its loop; those that elect leaders must not be among them.
Stays out: what is handled (`handlers`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from .api import EVERYWHERE, Kind
from .handlers import Sink, registry, settings

log = logging.getLogger(__name__)

RESTART_S = 2.0
STOP_S = 5.0


class KopfThread:
    """Calls `sink` in the loop that `start` is called in."""

    def __init__(self, sink: Sink, configuration: Configuration, namespaces: Sequence[str]) -> None:
        self._sink = sink
        self._configuration = configuration
        self._namespaces = list(namespaces)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        logging.getLogger("kopf").setLevel(logging.ERROR)  # a line for every event is nothing to anybody

        def tell(kind: Kind, what: str, item: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(self._sink, kind, what, item)

        self._thread = threading.Thread(target=self._run, args=[tell], name="kopf", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._ending.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_S)

    def _run(self, tell: Sink) -> None:
        everywhere = EVERYWHERE in self._namespaces
        while not self._ending.is_set():
            try:
                asyncio.run(kopf.operator(
                    registry=registry(tell, self._configuration), settings=settings(), standalone=True,
                    namespaces=[] if everywhere else self._namespaces, clusterwide=everywhere,
                    stop_flag=self._ending))
            except Exception as error:
                log.warning("kopf ended, it is started again: %s: %s", type(error).__name__, error)
            self._ending.wait(RESTART_S)
