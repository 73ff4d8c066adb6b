"""A node with few descriptors under a crowd of idle connections: the store goes on, and the crowd is sent away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node_harness import Appender, NodeProcess, OperatorHand, batch
from test_cluster import lead
from tidemark_core.replication.messages import Appended

from tests.crowd import crowd

SOFT, HARD = 300, 900
CROWD = 1100
STORE = 256
"""So many files the store may keep open."""


async def test_idle_connections_leave_descriptors_for_the_store(
    start_node: Callable[..., NodeProcess], operator: OperatorHand
) -> None:
    few = ("sh", "-c", f'ulimit -Sn {SOFT} && ulimit -Hn {HARD} && exec "$@"')
    node = start_node("a", "--metrics-listen", "127.0.0.1:0", prefix=few)
    assert node.ready["descriptors"] == HARD, "the soft limit is raised to the hard one"
    assert node.ready["connections_max"] < HARD
    await lead(operator, [node], node)
    appender = Appender(node.address)
    assert isinstance(await appender.append(batch(0)), Appended)
    with crowd(node.address, CROWD), crowd(node.ready["metrics_address"], CROWD):
        for sequence in range(1, 200):
            assert isinstance(await appender.append(batch(sequence)), Appended)
        assert node.process is not None
        used = len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))
        assert used <= HARD - STORE, "the store finds descriptors when it needs them"
    await appender.close()
    assert "Too many open files" not in node.log()
