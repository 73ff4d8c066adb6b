"""Producer ids and sequences: what a client chooses, and what a node can see in them (rules L25b and L26).

An id has 16 bytes.  One with a caller is `MARK`, the caller's tag and eight more bytes, random ones or those of a name.
Every other id has no caller: it is of a client of the release before, or of a cluster without TLS.
A sequence has the fence in its upper half, 0 where no process claims the producer, and the number in its lower half.
Stays out: who calls (the node's `access`), what an id's caller is asked for (`producers`).
"""

from __future__ import annotations

from hashlib import sha256

MARK = b"\xf5tm\xf5"
"""A client of the release before draws 16 random bytes: one id of 4 billion begins with the mark by chance."""

PREFIX_BYTES = 8
"""Of mark and tag.  The rest is random, so two producers of a caller have one id by chance in 2^64."""

FENCE_MAX = (1 << 31) - 1
NUMBER_BITS = 32
NUMBERS = 1 << NUMBER_BITS
"""Of one fence: more than a producer writes in a year at a hundred batches a second."""
CLAIM_NUMBERS = NUMBERS >> 1
"""A claim has one of so many numbers, by chance, and batches go on behind it."""


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


def named(name: str, prefix: bytes = b"") -> bytes:
    """Return the id of the producer that a caller gives this name."""
    digest = sha256(name.encode()).digest()
    return (prefix or bytes(PREFIX_BYTES)) + digest[:PREFIX_BYTES]


def fence_of(sequence: int) -> int:
    """Return the fence of a sequence, 0 for a producer that no process claims."""
    return sequence >> NUMBER_BITS


def claim_of(fence: int, draw: int) -> int:
    """Return the sequence of a claim; two claims with one fence have other numbers, unless their `draw` is the same."""
    return fence << NUMBER_BITS | draw % CLAIM_NUMBERS
