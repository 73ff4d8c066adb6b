"""Secrets of clients and admins as a kubelet mounts them for their pods: directories that follow the API server.

Stays out: what pods of the tests mount (`volumes`).
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from tidemark_wire.tls import TlsSettings

from .client import Kube, Object
from .volumes import write_files


def data(secret: Object) -> dict[str, bytes]:
    return {name: base64.b64decode(text) for name, text in secret["data"].items()}


class Mounted:
    """What is mounted until `close`."""

    def __init__(self, kube: Kube, directory: Path) -> None:
        self._kube = kube
        self._directory = directory
        self._tasks: list[asyncio.Task[None]] = []

    async def of(self, name: str) -> TlsSettings:
        """Mount the Secret of a client or an admin; every node answers to the name of the cluster."""
        place = self._directory / name
        place.mkdir(parents=True)
        write_files(place, data(await self._kube.wait("secrets", name, lambda found: True)))
        self._tasks.append(asyncio.create_task(self._follow(name, place)))
        return TlsSettings.of_directory(place, server_name="prod")

    async def _follow(self, name: str, place: Path) -> None:
        while True:
            async for kind, secret in self._kube.watch("secrets", fields=f"metadata.name={name}"):
                if kind != "DELETED":
                    write_files(place, data(secret))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
