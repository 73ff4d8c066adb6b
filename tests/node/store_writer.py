"""Child process of the crash tests: writes entries for ever and says after each sync how far it got."""

from __future__ import annotations

import sys
from pathlib import Path

from google_crc32c import value as crc32c
from tidemark_core.base.effects import Persist, PutEntry, PutState
from tidemark_core.base.entry import Batch, Entry, Kind, seal
from tidemark_core.base.ids import NOTHING, ShardId, of_shard
from tidemark_node.store import open_store


def chain_of(count: int, payload_bytes: int = 1000, records: int = 1) -> list[Entry]:
    """Build `count` entries that follow each other."""
    entries: list[Entry] = []
    prev, chain = NOTHING, 0
    for number in range(count):
        payload = (number % 251).to_bytes(1, "big") * payload_bytes
        made = Batch(b"p" * 16, number, records, 1, 2, crc32c(payload), payload)
        entry = seal(made, kind=Kind.DATA, epoch=1, prev=prev, prev_chain=chain, logged_ms=number)
        entries.append(entry)
        prev, chain = entry.id, entry.chain
    return entries


def main() -> None:
    store = open_store(Path(sys.argv[1]), "a")
    entries = chain_of(20_000, payload_bytes=3000)
    for at in range(0, len(entries), 3):
        group = entries[at : at + 3]
        persists = [
            Persist(of_shard(shard), (*(PutEntry(entry) for entry in group), PutState(str(group[-1].last).encode())))
            for shard in (ShardId(1), ShardId(2))
        ]
        store.apply(persists)
        store.sync()
        print(group[-1].last, flush=True)


if __name__ == "__main__":
    main()
