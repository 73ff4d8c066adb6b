"""Child process of the tests of the synced log: writes to a store, says where the synced log ends, waits to be killed.

Arguments: directory, synced entries, entries behind them that no sync covers, bytes of a write buffer.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from store_writer import chain_of
from tidemark_core.base.effects import Persist, PutEntry, PutState
from tidemark_core.base.ids import ShardId, of_shard
from tidemark_core.base.layout import LOG
from tidemark_node.families import FAMILIES
from tidemark_node.store import open_store


def main() -> None:
    directory, synced, tail, buffer_bytes = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    # A small buffer of payloads begins logs often; the other families keep the old logs needed.
    families = [replace(f, write_buffer_bytes=buffer_bytes) if f.name == LOG else f for f in FAMILIES]
    store = open_store(directory, "a", families=families)
    for number, entry in enumerate(chain_of(synced + tail)):
        store.apply([Persist(of_shard(ShardId(1)), (PutEntry(entry), PutState(str(number).encode())))])
        if number < synced:
            store.sync()
        if number == synced - 1:
            print(max((directory / "store").glob("*.log")).stat().st_size, flush=True)
    print("written", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
