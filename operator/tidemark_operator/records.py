"""Records: the areas of the key prefix, one row each: how a record is read, and by what it is looked up.

A new kind of record is a row here, and what follows from a change of one is a row of `OperatorService`.  The records of
an area with a plane are those of a machine (`driver`): one for each unit of the plane.
Stays out: what a record means, writing it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import KEYSPACE_PLANE, LOG_PLANE, Address
from tidemark_core.optimistic.records import RangeRecord
from tidemark_core.replication.records import ShardRecord

from .disruption import Hold
from .metadata import COUNTERS, NodeRecord, StoredObject, Tombstone, decode_mark
from .resources.kinds import KINDS, STORED

Area = str
COUNTER: Area = "counter"
"""The area of all counters; each lies beside the folders under its own name."""


def unit_of(name: str) -> int:
    """Return the id of a unit from the name of its record; raises RemoteViolation for another name."""
    try:
        return int(name, 16)
    except ValueError as error:
        raise RemoteViolation(f"record name {name!r} is not a hexadecimal id") from error


@dataclass(frozen=True, slots=True)
class RecordKind:
    """One row.  `decode` raises RemoteViolation, or ValueError, for what cannot be read; `key` for a name."""

    decode: Callable[[bytes], Any]
    key: Callable[[str], Any] = str
    single: bool = False
    """There is one record, and the area is its key; its name is empty."""
    plane: int | None = None
    unit: str = ""
    """The word for a unit of the plane."""


RECORDS: dict[Area, RecordKind] = {
    **{KINDS[kind].area: RecordKind(StoredObject.decode, single=KINDS[kind].single) for kind in STORED},
    "nodes": RecordKind(NodeRecord.decode),
    "marks": RecordKind(decode_mark),
    "shards": RecordKind(ShardRecord.decode, unit_of, plane=LOG_PLANE, unit="shard"),
    "deletions": RecordKind(Tombstone.decode, unit_of),
    "ranges": RecordKind(RangeRecord.decode, unit_of, plane=KEYSPACE_PLANE, unit="range"),
    "operator": RecordKind(bytes.decode, single=True),
    "disruption": RecordKind(Hold.decode, single=True),
    "recovery": RecordKind(bytes.decode, single=True),
    COUNTER: RecordKind(int),
}

OBJECT_AREAS: dict[Area, str] = {KINDS[kind].area: kind for kind in STORED}
"""The kind whose objects lie in an area."""

MACHINE_AREAS: dict[int, Area] = {row.plane: area for area, row in RECORDS.items() if row.plane is not None}
"""The area with the records of a plane."""


def area_of(path: str) -> tuple[Area, str]:
    """Return the area and the name of a key, given without the prefix; raises RemoteViolation for one not ours."""
    area, slash, name = path.partition("/")
    row = RECORDS.get(area)
    if path in COUNTERS:
        return COUNTER, path
    if row is None or area == COUNTER or row.single is bool(slash) or (slash and (not name or "/" in name)):
        raise RemoteViolation(f"key {path!r} is not known to this build")
    return area, name


def path_of(address: Address) -> str:
    """Return the key of a unit's record, without the prefix."""
    return f"{MACHINE_AREAS[address.plane]}/{address.id:016x}"


def name_of(address: Address) -> str:
    """Return what the log calls a unit."""
    return f"{RECORDS[MACHINE_AREAS[address.plane]].unit} {address.id:x}"
