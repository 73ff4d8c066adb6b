"""Gathering: small batches are put together into record batches of a size that Spark takes well.

Stays out: what a batch is made of (the rows of each mode).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

ROWS_MAX = 1 << 16
BYTES_MAX = 8 << 20
"""Of one record batch for Spark: a batch that is larger goes alone (P5)."""

SizedT = TypeVar("SizedT", bound=Sized)


def gathered(batches: Iterable[SizedT], bytes_of: Callable[[SizedT], int]) -> Iterator[list[SizedT]]:
    """Put batches together, in their order, up to ROWS_MAX rows and BYTES_MAX bytes; `len` of one is its rows."""
    together: list[SizedT] = []
    rows = size = 0
    for batch in batches:
        added = bytes_of(batch)
        if together and (rows + len(batch) > ROWS_MAX or size + added > BYTES_MAX):
            yield together
            together, rows, size = [], 0, 0
        together.append(batch)
        rows, size = rows + len(batch), size + added
    if together:
        yield together
