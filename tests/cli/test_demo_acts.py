"""The demo waits for a leader where an election is under way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tidemark_cli.demo import acts
from tidemark_cli.failures import CommandFailed


class Routing:
    """Knows no leader before its map has changed so many times."""

    def __init__(self, changes: float) -> None:
        self.changes = changes
        self.asked = 0

    def leader(self, group: str, shard: int) -> SimpleNamespace | None:
        return None if self.asked < self.changes else SimpleNamespace(node=f"{group}-{shard}")

    def refresh_soon(self) -> None:
        self.asked += 1

    async def wait_changed(self, timeout_s: float) -> None:
        await acts.asyncio.sleep(0)


async def test_a_leader_is_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known, late, never = (SimpleNamespace(routing=Routing(changes)) for changes in (0, 3, float("inf")))
    assert await acts.leader_of(known, "catalog", 1) == await acts.leader_of(late, "catalog", 1) == "catalog-1"
    assert late.routing.asked == 3
    monkeypatch.setattr(acts, "ACT_TIMEOUT_S", 0.05)
    with pytest.raises(CommandFailed, match=r"shard 1 of catalog has a leader: not within 0.05 s"):
        await acts.leader_of(never, "catalog", 1)
