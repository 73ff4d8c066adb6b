"""Store formats: the number of this release's layout, and how the rows of an older one become rows of it.

Each migration is one write: a process that dies in it leaves the old format whole, and the next start migrates again.
Format 5: `system` keys states and checkpoints by plane and number, so a plane whose units are not shards has room.
Stays out: the database (`store` reads the rows, writes and syncs), what states and checkpoints mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemark_core.base.ids import LOG_PLANE
from tidemark_core.base.layout import CHECKPOINT, DROPPED, STATE, F, Sink, address_key

STORE_FORMAT = 5
FORMAT = b"format"
UNMARKED = (None, b"4")
"""Stored formats, None for a new store, that need not have a synced mark."""

Row = tuple[bytes, bytes]


def _from_4(rows: Iterable[Row], sink: Sink[F], system: F) -> None:
    """Format 4 had 8 bytes of shard id behind these prefixes; headers and payloads stay where they are."""
    for key, value in rows:
        for prefix in (STATE, CHECKPOINT, DROPPED):
            if key.startswith(prefix) and len(key) == len(prefix) + 8:
                sink.delete(key, system)
                sink.put(address_key(prefix, LOG_PLANE, int.from_bytes(key[len(prefix) :], "big")), value, system)
    sink.put(FORMAT, str(STORE_FORMAT).encode(), system)


_MIGRATIONS: dict[bytes, Callable[..., None]] = {b"4": _from_4}


def migration(stored: bytes) -> Callable[..., None] | None:
    """Return what brings the stored format to this release's in one write, None when nothing does.

    Call it with the rows of the family `system`, a sink, and what stands for that family there.
    """
    return _MIGRATIONS.get(stored)


def refusal(stored: bytes) -> str:
    """Say why a format cannot be opened and what to do, for a format without a migration."""
    text = stored.decode(errors="replace")
    known = ", ".join(sorted(number.decode() for number in _MIGRATIONS))
    newer = stored.isdigit() and int(stored) > STORE_FORMAT
    advice = (
        "it was written by a newer release: start the node with the release that wrote it, or a newer one" if newer
        else "start the node with the release that wrote it, or give the node a new data directory and swap it in"
    )
    return (
        f"has store format {text}, this release reads {STORE_FORMAT} and migrates {known}: {advice}; "
        "nothing was changed"
    )
