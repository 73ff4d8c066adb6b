"""Cells of a keyspace as owners hold them, for backups: read page by page, and written back as they were.

Stays out: which node is asked (keyspace_calls), files (backup).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidemark_core.base.errors import RemoteViolation
from tidemark_core.optimistic.archive import Archived, key_of
from tidemark_wire.v1 import keyspaces_pb2 as wire

from .errors import InvalidArgument, WriteUnknown
from .keyspace_batches import CallOf, at_once
from .keyspace_calls import KeyspaceCalls
from .keyspace_results import OK
from .retrying import Backoff
from .routing import Ring

REQUEST_CELLS = 500
REQUEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CellsPage:
    """Cells of one range in their order.  `next` is the `first` of the next page, None: this is the last one.

    Deletes with a time up to `floor_ms`, in milliseconds, may be left out.
    """

    cells: tuple[Archived, ...]
    next: bytes | None
    floor_ms: int


@dataclass(frozen=True, slots=True)
class RefusedCell:
    """A cell that owners do not take: its time is 'below' a floor, or further in the 'future' than clocks may be.

    `element` is None where it is of a String, or a clear of all elements of the key.
    """

    key: bytes
    element: bytes | None
    outcome: str


def page_of(page: wire.CellsPage) -> CellsPage:
    """Return a page as the wire has it."""
    cells = tuple(Archived(each.place, each.row) for each in page.cells)
    return CellsPage(cells, page.next if page.HasField("next") else None, page.floor_ms)


async def import_cells(
    calls: KeyspaceCalls, ring: Ring, cells: Iterable[Archived], call_of: CallOf
) -> list[RefusedCell]:
    """Write cells until a write quorum has each one, and return those that owners refuse.

    An import may be repeated, so a request without an answer is sent again until the call's time is over.
    """
    refused: list[RefusedCell] = []
    await at_once(_import(calls, ring, index, some, call_of, refused) for index, some in list(_requests(ring, cells)))
    return refused


async def _import(
    calls: KeyspaceCalls, ring: Ring, index: int, cells: Sequence[Archived], call_of: CallOf,
    refused: list[RefusedCell],
) -> None:
    key, _ = key_of(cells[0])
    call = call_of(ring, index, key, len(cells))
    request = wire.ImportRequest(
        keyspace=ring.name, keyspace_id=ring.keyspace_id,
        cells=[wire.ArchivedCell(place=each.place, row=each.row) for each in cells])
    backoff, now = Backoff(), asyncio.get_running_loop().time
    while True:
        try:
            answer: wire.Imported = await calls.write(call, "Import", request, lambda _: False)
        except WriteUnknown as error:
            lost = error
        else:
            if answer.outcome == OK:
                refused += (RefusedCell(*key_of(cells[each.index]), each.outcome) for each in answer.refused
                            if each.index < len(cells))
                return
            lost = WriteUnknown(
                f"too few owners stored the import of {call.what} in time (outcome {answer.outcome!r})",
                keyspace=ring.name, key=key)
        if (pause_s := backoff.next()) >= call.deadline - now():
            raise lost
        await asyncio.sleep(pause_s)


def _requests(ring: Ring, cells: Iterable[Archived]) -> Iterator[tuple[int, list[Archived]]]:
    """Yield cells of one range each, within the bounds of a request.  Raises InvalidArgument."""
    open_: dict[int, tuple[list[Archived], int]] = {}
    for place, cell in enumerate(cells):
        try:
            index = ring.range_of(key_of(cell)[0])
        except RemoteViolation as error:
            raise InvalidArgument(f"cells[{place}]", f"is no cell of a keyspace: {error}") from None
        batch, size = open_.get(index, ([], 0))
        if batch and (len(batch) >= REQUEST_CELLS or size + cell.size > REQUEST_BYTES):
            yield index, batch
            batch, size = [], 0
        batch.append(cell)
        open_[index] = batch, size + cell.size
    for index, (batch, _) in open_.items():
        yield index, batch
