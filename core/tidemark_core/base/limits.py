"""Limits: the bounds that a node gives each of its shards.

Stays out: bounds of the shell (the node's settings), what a group may choose (`replication.settings`).
"""

from __future__ import annotations

from dataclasses import dataclass

from .folds import Table
from .ids import ShardKind

BLOCK_BYTES = 32 << 20
BLOCK_MS = 10 * 60_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one shard on one node; bytes count headers and payloads, times are milliseconds.

    `extra_folds` are folded beside those of this release (`tidemark_core.shard.FOLDS`).  A store that was written with
    one cannot be opened without it.  `kinds` are the kinds of shard that the node's store has families for.
    """

    pending_entries_max: int = 4096
    pending_bytes_max: int = 64 << 20
    push_bytes_max: int = 1 << 20        # one Append message
    inflight_bytes_max: int = 8 << 20    # per follow cursor
    tail_bytes_max: int = 8 << 20
    batch_bytes_max: int = 8 << 20
    resend_ms: int = 400
    commit_notice_ms: int = 10
    documents_notice_ms: int = 3         # the same of documents: reads and changes at followers wait for it
    transfer_ms: int = 2_000
    read_index_ms: int = 2_000           # so long a caller waits for a round to a majority (O46)
    pull_retry_ms: int = 500
    checkpoint_entries: int = 8192
    checkpoint_rows: int = 1024         # of the producer table that one write takes along, about
    order_block_bytes: int = BLOCK_BYTES # so long one reading order holds, and so long in time (K1)
    order_block_ms: int = BLOCK_MS
    retention_look_ms: int = 10_000      # least time between two looks at what has expired
    drop_ms: int = 1_000                 # so long after the last progress a leader names surplus payloads (K6)
    drop_bytes: int = 8 << 20            # and at least whenever so much was committed
    fold_bytes_max: int = 256 << 10      # of log in one slice of the fold of documents (U46)
    expire_look_ms: int = 1_000          # how often a leader looks what time removes (U51, U52)
    compare_ms: int = 60_000             # how often a leader compares the documents of its members (U73b)
    tombstone_ms: int = 7 * 24 * 3600 * 1000   # a younger one is not purged (U52)
    pinned_bytes_max: int = 10 << 30     # of superseded versions for one pin of a shard (U70)
    extra_folds: Table = ()
    kinds: tuple[ShardKind, ...] = tuple(ShardKind)
