"""Producer ids: 16 bytes that a client chooses, in which a node can see whose they are (rule L25b).

An id with a caller is `MARK`, the caller's tag and eight random bytes.  Every other id has no caller: it is of a client
of the release before, or of a cluster without TLS.
Stays out: who calls (the node's `access`), what an id's caller is asked for (`producers`).
"""

from __future__ import annotations

from hashlib import sha256

MARK = b"\xf5tm\xf5"
"""A client of the release before draws 16 random bytes: one id of 4 billion begins with the mark by chance."""

PREFIX_BYTES = 8
"""Of mark and tag.  The rest is random, so two producers of a caller have one id by chance in 2^64."""


def prefix_of(owner: str) -> bytes:
    """Return the 8 bytes that ids of this caller begin with, none for a caller without a name."""
    return MARK + sha256(owner.encode()).digest()[: PREFIX_BYTES - len(MARK)] if owner else b""


def caller_of(producer: bytes) -> bytes:
    """Return the prefix of the caller that an id names, none for an id without a caller."""
    return producer[:PREFIX_BYTES] if producer.startswith(MARK) else b""


def next_of(producer: bytes, prefix: bytes = b"") -> bytes:
    """Return the id that follows one, beginning with `prefix` if that is given.

    The producer drew its first id at random, so that no other producer has the ids behind it.
    """
    number = int.from_bytes(producer[PREFIX_BYTES:]) + 1
    return (prefix or producer[:PREFIX_BYTES]) + (number % (1 << 64)).to_bytes(8)
