"""The view: documents are put while a SQLite file follows their changes and a leader is killed; then both are compared.

Stays out: tables and streams (client), exit codes (command).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tidemark import Client, Put, SqliteView
from tidemark_operator import local

from ..admin import Admin
from .acts import create_group, leader_of, within
from .packages import Change
from .screen import Screen

GROUP, SHARDS, COPIES = "catalog", 2, 3
FILE_NAME = "catalog.db"
KILL_AT = 0.5   # share of the puts


class Findings(NamedTuple):
    """The result of the comparison: documents, how many differ, and whether the digests are "equal"."""

    documents: int
    mismatches: int
    digest: str
    killed: str

    @property
    def good(self) -> bool:
        """Say whether the view equals the store."""
        return not self.mismatches and self.digest == "equal"


async def run(
    service: Admin, runtime: local.Runtime, client: Client, changes: Sequence[Change], directory: Path, screen: Screen,
) -> Findings:
    """Run the act."""
    await create_group(service, runtime, GROUP, shards=SHARDS, copies=COPIES, kind="Documents")
    screen.tell(f"LogGroup {GROUP}, kind Documents: {SHARDS} shards, {COPIES} copies; putting the packages one version "
                f"after the other while a view, the SQLite file {FILE_NAME}, follows")
    await client.group(GROUP)
    async with client.view(GROUP, directory / FILE_NAME) as view:
        async with within("every document is put though a leader is killed"):
            killed = await _put(runtime, client, changes, view, screen)
        await runtime.start(killed)
        async with within("the view equals the store"):
            result = await view.verify()
    wrong = len(result.mismatches) + len(result.rotten)
    found = Findings(result.documents, wrong, result.digest, killed)
    screen.tell(f"{found.documents:,} documents in store and view: {wrong} differ, the digests are {found.digest}",
                "bold green" if found.good else "bold red")
    return found


async def _put(
    runtime: local.Runtime, client: Client, changes: Sequence[Change], view: SqliteView, screen: Screen
) -> str:
    """Put everything, kill the leader of the first shard on the way, and return its name."""
    killed = ""

    async def writes() -> AsyncIterator[Put]:
        nonlocal killed
        for done, change in enumerate(changes):
            if not killed and done >= KILL_AT * len(changes):
                killed = await leader_of(client, GROUP, 0)
                screen.tell(f"{done:,} put, {view.received:,} changes in the view; SIGKILL to {killed}, which leads "
                            "shard 0", "bold red")
                await asyncio.to_thread(runtime.kill, killed)
            yield Put(change.key, change.value)
            screen.count(done + 1)

    screen.begin("put", len(changes))
    async with client.documents(GROUP, timeout_s=60) as documents:
        await documents.put_many(writes())
    return killed
