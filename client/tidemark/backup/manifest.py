"""The manifest of a backup: which group or keyspace, which state of each part, which files.  Every field is checked.

A part is a shard of a group or a range of a keyspace.
Stays out: files (folder, files), what rows and digests are (document_rows, cell_rows).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from tidemark_core.base.ids import LINEAGE_BYTES
from tidemark_core.documents.payload import KEY_BYTES_MAX, SEQNO_MAX
from tidemark_core.documents.pinning import NAME_BYTES_MAX
from tidemark_core.optimistic.archive import MARK_BYTES_MAX, TIME_MS_MAX

from .errors import BackupDamaged, BackupVersion

FORMAT = "tidemark-backup"
VERSION = 1
MANIFEST_BYTES_MAX = 64 << 20
SHARDS_MAX = 65_536
FILES_MAX = 1_000_000
FILE_BYTES_MAX = 8 << 30
DOCUMENTS, KEYSPACE = "Documents", "Keyspace"
PARTS = {DOCUMENTS: "shard", KEYSPACE: "range"}
"""The name of a part, by the kind of the backup."""

_NAMES = {DOCUMENTS: "group", KEYSPACE: "keyspace"}
_KEY_BYTES_MAX = {DOCUMENTS: KEY_BYTES_MAX, KEYSPACE: MARK_BYTES_MAX}
_PATH = re.compile(r"(shard|range)-[0-9]{5}/[0-9]{6}\.arrow")
_NUMBER_MAX = (1 << 63) - 1


def path_of(kind: str, shard: int, number: int) -> str:
    """Return the path of a file of a shard or range below the folder."""
    return f"{PARTS[kind]}-{shard:05}/{number:06}.arrow"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that is complete.  `checksum` is the xxh3_128 of its bytes, in hexadecimal digits.

    `digest` and `content` are those of its rows alone; those of a shard are their sums mod 2^128.
    """

    path: str
    size: int
    rows: int
    checksum: str
    digest: int
    content: int
    last_key: bytes


@dataclass(slots=True)
class ShardRecord:
    """The cut of one shard that the pin keeps, and its files in the order of their keys.

    A range of a keyspace has no cut: `floor_ms` is the highest floor that a page of it was read at.
    """

    shard: int
    seqno: int
    epoch: int
    lineage: bytes
    count: int
    digest: int
    files: list[FileRecord] = field(default_factory=list)
    floor_ms: int = 0

    @classmethod
    def of_range(cls, index: int, files: list[FileRecord], floor_ms: int) -> ShardRecord:
        """Return a range of a keyspace, with the count and the digest of its files."""
        count, digest = sum(each.rows for each in files), sum(each.digest for each in files)
        return cls(index, -1, 0, b"", count, digest % (1 << 128), files, floor_ms)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)

    @property
    def content(self) -> int:
        """The content digest of the rows in the files."""
        return sum(each.content for each in self.files) % (1 << 128)

    @property
    def same_cut(self) -> tuple[int, int, int, int, int]:
        """The facts that two records of one pin share."""
        return self.shard, self.seqno, self.epoch, self.count, self.digest


@dataclass(slots=True)
class Manifest:
    """A backup, or as much of it as is there."""

    group: str
    kind: str
    created: str
    software: str
    spec: dict[str, Any]
    pin: str
    shards: list[ShardRecord] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(each.count for each in self.shards)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(each.size for shard in self.shards for each in shard.files)

    @property
    def content(self) -> int:
        """The content digest of all documents."""
        return sum(each.content for each in self.shards) % (1 << 128)

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        document = {
            "format": FORMAT, "version": VERSION, _NAMES[self.kind]: self.group, "kind": self.kind,
            "created": self.created, "software": self.software, "spec": self.spec,
            **({"pin": self.pin} if self.kind == DOCUMENTS else {}), "count": self.count, "bytes": self.size,
            "content": hex_of(self.content),
            f"{PARTS[self.kind]}s": [
                {
                    PARTS[self.kind]: each.shard, **self._cut(each), "count": each.count,
                    "digest": hex_of(each.digest), "content": hex_of(each.content),
                    "files": [
                        {
                            "path": file.path, "bytes": file.size, "rows": file.rows, "xxh3_128": file.checksum,
                            "digest": hex_of(file.digest), "content": hex_of(file.content),
                            "last_key": file.last_key.hex(),
                        }
                        for file in each.files
                    ],
                }
                for each in self.shards
            ],
        }
        return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"

    def _cut(self, part: ShardRecord) -> dict[str, Any]:
        if self.kind == KEYSPACE:
            return {"floor_ms": part.floor_ms}
        return {"seqno": part.seqno, "epoch": part.epoch, "lineage": part.lineage.hex()}

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read `encode`; raises BackupDamaged naming the field, BackupVersion."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BackupDamaged([f"the manifest is no JSON: {error}"]) from None
        root = _Fields(document, "the manifest")
        if root.text("format", 64) != FORMAT:
            raise BackupDamaged([f"the manifest: format is not {FORMAT!r}"])
        version = root.number("version")
        if version != VERSION:
            raise BackupVersion(f"the manifest has version {version}, this release reads {VERSION}")
        kind = root.text("kind", 32)
        if kind not in PARTS:
            raise BackupVersion(f"the manifest is of a backup of kind {kind!r}, this release knows {', '.join(PARTS)}")
        spec = root.value("spec", dict)
        parts = f"{PARTS[kind]}s"
        shards = [
            _shard(_Fields(each, f"the manifest: {parts}[{place}]"), kind)
            for place, each in enumerate(root.items(parts, SHARDS_MAX))
        ]
        numbers = [each.shard for each in shards]
        if len(set(numbers)) < len(numbers):
            raise BackupDamaged([f"the manifest: a {PARTS[kind]} is there twice"])
        pin = root.text("pin", NAME_BYTES_MAX) if kind == DOCUMENTS else ""
        found = cls(
            root.text(_NAMES[kind], 253), kind, root.text("created", 64), root.text("software", 64), spec, pin, shards)
        for name, said, summed in (("count", root.number("count"), found.count), ("bytes", root.number("bytes"),
                                    found.size), ("content", root.hash("content"), found.content)):
            if said != summed:
                raise BackupDamaged([f"the manifest: {name} is not the sum of its shards"])
        return found


def _shard(fields: _Fields, kind: str) -> ShardRecord:
    shard = fields.number(PARTS[kind], SHARDS_MAX)
    files = [
        _file(_Fields(each, f"{fields.where}.files[{place}]"), kind, shard)
        for place, each in enumerate(fields.items("files", FILES_MAX))
    ]
    count, digest = fields.number("count"), fields.hash("digest")
    if kind == KEYSPACE:
        found = ShardRecord.of_range(shard, files, fields.number("floor_ms", TIME_MS_MAX))
        if (found.count, found.digest) != (count, digest):
            raise BackupDamaged([f"{fields.where}: count or digest is not the sum of its files"])
    else:
        found = ShardRecord(
            shard, fields.number("seqno", SEQNO_MAX, -1), fields.number("epoch"),
            fields.data("lineage", LINEAGE_BYTES, 0), count, digest, files)
    if fields.hash("content") != found.content:
        raise BackupDamaged([f"{fields.where}: content is not the sum of its files"])
    return found


def _file(fields: _Fields, kind: str, shard: int) -> FileRecord:
    path = fields.text("path", 64)
    if _PATH.fullmatch(path) is None or not path.startswith(f"{PARTS[kind]}-{shard:05}/"):
        raise BackupDamaged(
            [f"{fields.where}: path {path!r} is not a file of {PARTS[kind]} {shard} below the folder"])
    checksum = fields.hash("xxh3_128")
    return FileRecord(
        path, fields.number("bytes", FILE_BYTES_MAX), fields.number("rows"), hex_of(checksum), fields.hash("digest"),
        fields.hash("content"), fields.data("last_key", _KEY_BYTES_MAX[kind]),
    )


class _Fields:
    """The fields of one JSON object; `where` names it."""

    def __init__(self, document: Any, where: str) -> None:
        if not isinstance(document, dict):
            raise BackupDamaged([f"{where} is no object"])
        self._document = document
        self.where = where

    def value(self, name: str, kind: type) -> Any:
        found = self._document.get(name)
        if type(found) is not kind:
            raise BackupDamaged([f"{self.where}: {name} is missing or malformed"])
        return found

    def text(self, name: str, length_max: int) -> str:
        found: str = self.value(name, str)
        if len(found) > length_max:
            raise BackupDamaged([f"{self.where}: {name} has {len(found)} characters, the limit is {length_max}"])
        return found

    def number(self, name: str, most: int = _NUMBER_MAX, least: int = 0) -> int:
        found: int = self.value(name, int)
        if not least <= found <= most:
            raise BackupDamaged([f"{self.where}: {name} is {found}, must be {least} to {most}"])
        return found

    def data(self, name: str, length_max: int, *lengths: int) -> bytes:
        """Return bytes; with `lengths` they have `length_max` or one of these."""
        text = self.text(name, 2 * length_max)
        try:
            found = bytes.fromhex(text)
        except ValueError:
            raise BackupDamaged([f"{self.where}: {name} is not hexadecimal"]) from None
        if lengths and len(found) not in (length_max, *lengths):
            raise BackupDamaged([f"{self.where}: {name} has {len(found)} bytes, not {length_max}"])
        return found

    def hash(self, name: str) -> int:
        return int.from_bytes(self.data(name, 16, 16), "big")

    def items(self, name: str, count_max: int) -> list[Any]:
        found: list[Any] = self.value(name, list)
        if len(found) > count_max:
            raise BackupDamaged([f"{self.where}: {name} has {len(found)} items, the limit is {count_max}"])
        return found


def hex_of(number: int) -> str:
    """Return a hash or digest of 16 bytes in hexadecimal digits."""
    return number.to_bytes(16, "big").hex()
