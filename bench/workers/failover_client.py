"""A client that appends one record after the other and says when a new leader answered for the first time.

Times are CLOCK_MONOTONIC, which every process of a machine shares.  `pause_ms` lies between two appends, so that the
client is not what keeps the processors busy; it is the resolution of the measurement.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import tidemark


def _leader(client: tidemark.Client, group: str, epoch: int) -> str:
    """Return who leads shard 0 in `epoch`, or nothing while the map we have is older."""
    shard = next(g for g in client.shard_map.groups if g.name == group).shards[0]
    return shard.leader if shard.epoch >= epoch else ""


async def main(addresses: list[str], group: str, pause_ms: float) -> None:
    """Print a line for the first acknowledgement of every epoch, and one when the map names its leader."""
    client = await tidemark.connect(addresses)
    loop = asyncio.get_running_loop()
    stopped = loop.run_in_executor(None, sys.stdin.read)
    known_epoch, named_epoch, acknowledged = -1, -1, 0
    async with client, client.appender(group, timeout_s=60) as appender:
        while not stopped.done():
            place = await appender.append(b"x" * 1024)
            at, acknowledged = time.monotonic(), acknowledged + 1
            if place.epoch > known_epoch:
                known_epoch = place.epoch
                print(json.dumps({"epoch": known_epoch, "at": at}), flush=True)
            if named_epoch < known_epoch and (leader := _leader(client, group, known_epoch)):
                named_epoch = known_epoch
                print(json.dumps({"named": named_epoch, "leader": leader, "acknowledged": acknowledged}), flush=True)
            await asyncio.sleep(pause_ms / 1000)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
