"""Write a small store with the nodes of the checkout it runs in, for tests that open stores of older releases.

Run it by hand with an older release, in a checkout of it outside this one:

    git worktree add ../older COMMIT; cd ../older; python -m venv .venv; .venv/bin/pip install -e '.[dev]'
    PYTHONPATH=tests/node .venv/bin/python ../this/tools/make_old_store.py ../this/tests/node/data/store-format-N.tar.xz

Three nodes serve three shards.  Shard 0 is trimmed, so it has a checkpoint; two of three members keep the payloads of
shard 1; shard 2 has a named position.  Then the nodes restart and append again, and the store of one of them is copied
while it is open: tables and a write-ahead log.  The archive holds it beside `expected.json`, which the older release
read from another copy.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from node_harness import GROUP, SHARD, Appender, OperatorHand, batch, push_map, shard_map
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import EntryId, Member, ShardId
from tidemark_core.base.limits import Limits
from tidemark_core.replication.messages import BecameLeader, BecomeLeader, Fence, Fenced
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_node.store import STORE_FORMAT, Store, open_store
from tidemark_wire import channel
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

SHARDS = [ShardId(SHARD + index) for index in range(3)]
COPIES = 2
LEASE_MS = 31_536_000_000
RETENTION_BYTES = 2 << 20
PAYLOADS = (bytes(256 << 10), b"", b"")     # of shard 0, so that its log is trimmed soon; "" is a short one
ENTRIES = (16, 24, 12)
LEFT_OUT = ("LOG", "OPTIONS", "LOCK")       # the database does without, and they name paths of this machine


def made(directory: Path) -> list[Node]:
    return [
        Node(
            Settings(node=name, data=directory / name, metrics_listen="off", disk_reserve_bytes=1 << 20),
            Limits(retention_look_ms=100),
        )
        for name in "abc"
    ]


async def lead(nodes: list[Node], epoch: int) -> OperatorHand:
    """Start the nodes and make the first one lead every shard."""
    for node in nodes:
        await node.start()
    members = [(node.me, node.address) for node in nodes]
    pushed = shard_map(members, "a", epoch, shards=len(SHARDS), retention_bytes=RETENTION_BYTES)
    pushed.groups[0].shards[1].payload_copies = COPIES
    operator = OperatorHand()
    for node in nodes:
        await push_map(node.address, pushed)
        await operator.link(node.me.node, node.address)
    ensemble: tuple[Member, ...] = tuple(node.me for node in nodes)
    for index, shard in enumerate(SHARDS):
        heads: list[tuple[Member, EntryId]] = []
        for member in ensemble:
            fenced = await operator.ask(member, Fence(epoch, epoch), Fenced, shard)
            heads.append((member, fenced.head))
        become = BecomeLeader(epoch, epoch, ensemble, tuple(heads[1:]), COPIES if index == 1 else 0)
        await operator.ask(ensemble[0], become, BecameLeader, shard)
    return operator


async def append(nodes: list[Node], first: int, counts: tuple[int, ...]) -> None:
    appender = Appender(nodes[0].address)
    for index, count in enumerate(counts):
        for sequence in range(first, first + count):
            await appender.append(batch(sequence, PAYLOADS[index], count=1 + sequence % 3), shard=index)
    await appender.close()


async def until(fact: Any) -> None:
    async with asyncio.timeout(30):
        while not fact():  # noqa: ASYNC110 - the fact is in the core of a node, which has no event for it
            await asyncio.sleep(0.05)


def settled(nodes: list[Node]) -> bool:
    """Say whether every member has confirmed all of each shard and has trimmed what the leader has."""
    statuses = [[node.driver.core.status(shard) for node in nodes] for shard in SHARDS]
    return all(
        status["head"] == leader["head"] == f"{leader['epoch']}:{status['confirmed']}"
        and status["first"] == leader["first"]
        for leader, *others in statuses for status in (leader, *others)
    )


async def write(directory: Path) -> tuple[str, Path]:
    """Return the name of the node whose store is worth keeping, and a copy of its data directory."""
    nodes = made(directory / "nodes")
    operator = await lead(nodes, 1)
    await append(nodes, 0, ENTRIES)
    async with channel.open_channel(nodes[0].address) as opened:
        await node_pb2_grpc.TidemarkStub(opened).CommitPosition(node_pb2.CommitPositionRequest(
            group=GROUP, shard=2, subscription="billing", offset=5, lease_ms=LEASE_MS), timeout=10)
    await until(lambda: nodes[0].driver.core.status(SHARDS[0])["first"] > 0)
    await until(lambda: any(node.driver.store.dropped.known(SHARDS[1]) for node in nodes))
    await operator.close()
    for node in nodes:
        await node.stop()
    nodes = made(directory / "nodes")
    operator = await lead(nodes, 2)
    await append(nodes, 100, (2, 3, 3))
    await until(lambda: settled(nodes))
    for node in nodes:
        await node.driver.durable()
    chosen = next(node for node in nodes if node.driver.store.dropped.known(SHARDS[1])).me.node
    shutil.copytree(directory / "nodes" / chosen, directory / "copy")
    await operator.close()
    for node in nodes:
        await node.stop()
    return chosen, directory / "copy"


def expected(directory: Path, node: str) -> dict[str, Any]:
    """Read everything back with this release."""
    store = open_store(directory, node)
    remembered = store.remembered()
    found = {
        "node": node, "format": STORE_FORMAT, "incarnation": store.incarnation,
        "remembered": remembered.hex() if remembered else None,
        "shards": {str(shard): _shard(store, shard) for shard in store.shards()},
    }
    store.close()
    return found


def _shard(store: Store, shard: Any) -> dict[str, Any]:
    state, checkpoint = store.state(shard)
    headers = list(store.headers(shard, 0))
    entries = store.read(shard, headers[0].base, headers[-1].last, 1 << 40)
    assert entries.damaged_at is None and len(entries.entries) == len(headers)
    return {
        "state": state.hex(), "checkpoint": checkpoint.hex() if checkpoint is not None else None,
        "dropped": store.dropped.known(shard),
        "entries": [
            {
                "base": entry.base, "kind": Kind(entry.kind).name, "header": entry.header.hex(), "held": entry.held,
                "payload_sha256": hashlib.sha256(entry.payload).hexdigest(),
            }
            for entry in entries.entries
        ],
    }


def pack(directory: Path, facts: dict[str, Any], archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    contents = {"expected.json": json.dumps(facts, indent=1).encode()}
    for path in sorted((directory / "store").iterdir()):
        if not path.name.startswith(LEFT_OUT):
            contents[f"store/{path.name}"] = path.read_bytes()
    with tarfile.open(archive, "w:xz") as packed:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))


def main() -> None:
    archive = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        node, copy = asyncio.run(write(directory))
        shutil.copytree(copy, directory / "read")
        facts = expected(directory / "read", node)
        pack(copy, facts, archive)
    for shard, found in facts["shards"].items():
        held = [entry["held"] for entry in found["entries"]]
        print(shard, len(held), "entries,", held.count(False), "without payload, first at",
              found["entries"][0]["base"], ", checkpoint", bool(found["checkpoint"]), ", dropped", found["dropped"])
    print(archive, archive.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
