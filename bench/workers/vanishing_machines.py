"""Three nodes in network namespaces, and the leader's cable pulled again and again; runs behind `way_in`.

Prints the milliseconds of each pull, from the pull to the first append that a later epoch acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from bench.failover import first_acknowledgement, leader_of, settle
from bench.processes import Worker, worker
from tests.e2e.cluster import Cluster
from tests.e2e.namespaces import Cables


async def main(directory: str, pulls: int, pause_ms: float) -> None:
    """Pull `pulls` cables, one after the other; the node has caught up before the next one."""
    cluster = Cluster(Path(directory))
    try:
        await cluster.up(3, silence_ms=None)
        cables = Cables(cluster.nodes)
        await cluster.move(cables.prefix, cables.address)
        group = await cluster.create_group()
        addresses = [cluster.address(name) for name in cluster.nodes]
        with worker("failover_client", addresses=addresses, group=group, pause_ms=pause_ms) as client:
            await _pull(cluster, cables, client, group, pulls)
    finally:
        cluster.destroy()


async def _pull(cluster: Cluster, cables: Cables, client: Worker, group: str, pulls: int) -> None:
    epoch = client.read()["epoch"]
    leader = leader_of(client, epoch)
    for _ in range(pulls):
        settle()
        began = time.monotonic()
        cables.pull(leader)
        said = first_acknowledgement(client, epoch)
        print(json.dumps({"ms": (said["at"] - began) * 1000}), flush=True)
        epoch = said["epoch"]
        leader = leader_of(client, epoch)
        cables.mend()
        await cluster.ready()
        await cluster.replicated(group)


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
