"""A mixed load on nodes of this process: owners that were away are equal again, and hold what was acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tidemark

from tests.keyspace_load import KeyLoad
from tests.keyspace_nodes import KeyspaceNodes

pytestmark = pytest.mark.servers
NAME = "carts"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[KeyspaceNodes]:
    nodes = KeyspaceNodes(tmp_path)
    try:
        await nodes.up("abcd", NAME)
        yield nodes
    finally:
        await nodes.down()


async def test_d74_owners_that_were_away_under_load_hold_every_acknowledged_operation(nodes: KeyspaceNodes) -> None:
    async with await tidemark.connect(list(nodes.addresses.values())) as client:
        async with KeyLoad(client.keyspace(NAME, timeout_s=2)) as load:
            await load.more(50)
            await nodes.stop("a")
            await load.more(50)
            await nodes.start("a")
            await load.more(20)
        await load.healed()
        assert (0, 0, ()) == await load.verdict()
