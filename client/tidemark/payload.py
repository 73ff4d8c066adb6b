"""The payload of a batch: one Arrow IPC record-batch message whose schema both sides know.

Encoding goes from Python lists or Arrow columns to one message.  Decoding takes every byte for hostile: a writer may
have put anything there, and Arrow follows offsets and lengths without a look.  This module alone opens a payload.

The rule, with reason and tests in `docs/protocols/trust.md`:

T11  Payloads are hostile

Stays out: records and their offsets (batch).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import cast

import pyarrow as pa

_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)])
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=True),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("timestamp", pa.timestamp("us"), nullable=False),
        pa.field("headers", pa.list_(_HEADER), nullable=True),
    ]
)
COMPRESSIONS = (None, "lz4", "zstd")

_KEY, _VALUE, _TIMESTAMP, _HEADERS = (field.type for field in SCHEMA)

DECODED_BYTES_MAX = 64 << 20
"""Bytes that a compressed payload may take once it is decompressed, unless a reader sets another bound."""

NODES, BUFFERS = 7, 17
"""Arrays of the schema, nested ones included, and the buffers that they lie in."""

NOTE_BYTES_MAX = 1024
"""Bytes of a note that a writer sends along with a batch."""

METADATA_PAIRS_MAX = 64
"""Pairs of metadata that a reader looks through for a note; an appender writes at most one."""

METADATA_V5 = 4
NOT_COMPRESSED = -1       # in place of the size of a buffer that is stored as it is

_NOTE = b"tidemark.note"
_STREAM_END_BYTES = 8

_U16, _U32, _I32, _I64 = (struct.Struct(form).unpack_from for form in ("<H", "<I", "<i", "<q"))
_MESSAGE_SLOTS = struct.Struct("<4xH2xH").unpack_from        # of the table of slots: fields 0 and 2
_BATCH_SLOTS = struct.Struct("<H4xHH").unpack_from           # its own bytes, fields 1 and 2
_NODES = struct.Struct("<I14q").unpack_from
_BUFFER = struct.Struct("<qq").unpack_from


class UndecodablePayload(ValueError):
    """A payload is not what an appender writes."""


def encode(
    values: list[bytes],
    keys: list[bytes | None] | None,
    timestamps_us: list[int],
    headers: list[tuple[tuple[str, bytes], ...] | None] | None,
    compression: str | None = None,
) -> bytes:
    """Return the payload of a batch.  `keys` and `headers` are None when no record has any."""
    count = len(values)
    columns = [
        pa.nulls(count, _KEY) if keys is None else pa.array(keys, _KEY),
        pa.array(values, _VALUE),
        pa.Array.from_buffers(_TIMESTAMP, count, [None, pa.py_buffer(array("q", timestamps_us))]),
        pa.nulls(count, _HEADERS) if headers is None else pa.array(headers, _HEADERS),
    ]
    return encode_columns(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), compression)


def encode_columns(columns: pa.RecordBatch, compression: str | None = None, note: bytes = b"") -> bytes:
    """Return the payload of columns of SCHEMA.  A note, up to NOTE_BYTES_MAX, travels in the message's metadata."""
    if compression is None and not note:
        return cast(bytes, columns.serialize().to_pybytes())
    # Only the stream writer compresses and takes metadata; behind the schema it writes the same kind of message.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(columns, custom_metadata={_NOTE: note} if note else None)
    stream = memoryview(sink.getvalue())
    schema_bytes = 8 + _I32(stream, 4)[0]   # a mark and the length, which the message of the schema begins with
    return bytes(stream[schema_bytes:-_STREAM_END_BYTES])


def decode(payload: bytes, count: int, decoded_bytes_max: int = DECODED_BYTES_MAX) -> pa.RecordBatch:
    """Return the `count` records of a payload as Arrow columns that share its memory where it is not compressed.

    Sizes are bounded before anything is decompressed; offsets, lengths and texts are checked before anything is read
    by them.  Raises UndecodablePayload (T11).
    """
    try:
        message = pa.ipc.read_message(payload)
        _check_metadata(message, decoded_bytes_max)
        record_batch = pa.ipc.read_record_batch(message, SCHEMA)
        if record_batch.num_rows != count:
            raise UndecodablePayload(f"payload holds {record_batch.num_rows} records, its header says {count}")
        record_batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, struct.error) as error:
        raise UndecodablePayload(f"payload is no Arrow record batch of the schema: {error}") from error
    return record_batch


def note_of(payload: bytes) -> bytes:
    """Return the note that a payload's writer sent along, b"" where there is none; the columns are not decoded.

    Raises UndecodablePayload (T11).
    """
    try:
        metadata = memoryview(pa.ipc.read_message(payload).metadata)
        _batch_table(metadata)
        note = next((value for key, value in _custom_metadata(metadata) if key == _NOTE), memoryview(b""))
    except (pa.ArrowException, OSError, EOFError, struct.error) as error:
        raise UndecodablePayload(f"payload has no metadata of a record batch: {error}") from error
    if len(note) > NOTE_BYTES_MAX:
        raise UndecodablePayload(f"payload has a note of {len(note)} bytes, the bound is {NOTE_BYTES_MAX}")
    return bytes(note)


def plain_batches(source: pa.NativeFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of an Arrow stream, or of a file from behind its magic; each is checked as by `decode`.

    Raises UndecodablePayload for another schema, compression, nulls where the schema allows none (T11).
    """
    try:
        messages = pa.ipc.MessageReader.open_stream(source)
        first = next(messages, None)
        if first is None or not pa.ipc.read_schema(first).equals(schema):
            raise UndecodablePayload("columns are not those of the schema")
        for message in messages:
            metadata = memoryview(message.metadata)
            _, slots, slots_bytes, _, _ = _batch_table(metadata)
            if slots_bytes >= 12 and _U16(metadata, slots + 10)[0]:
                raise UndecodablePayload("record batch is compressed")
            record_batch = pa.ipc.read_record_batch(message, schema)
            record_batch.validate(full=True)
            for field, column in zip(schema, record_batch.columns, strict=True):
                if column.null_count and not field.nullable:
                    raise UndecodablePayload(f"column {field.name} has nulls")
            yield record_batch
    except (pa.ArrowException, OSError, EOFError, struct.error) as error:
        raise UndecodablePayload(f"no Arrow record batches of the schema: {error}") from error


def _check_metadata(message: pa.Message, decoded_bytes_max: int) -> None:
    """Check what Arrow believes unseen: which arrays have nulls, and what buffers say that they decompress to.

    The metadata is a flatbuffer, which Arrow has verified.  Its root is a Message table: field 0 is the version, 2 the
    RecordBatch table.  Of that, field 1 are the nodes (length and nulls of each array, in the order of the schema), 2
    the buffers (offset and length in the body), and 3 says that they are compressed.
    """
    metadata = memoryview(message.metadata)
    table, slots, slots_bytes, nodes, buffers = _batch_table(metadata)
    nodes += table
    found = _NODES(metadata, nodes + _U32(metadata, nodes)[0])
    if found[0] != NODES:
        raise UndecodablePayload(f"payload has {found[0]} arrays, the schema has {NODES}")
    if found[4] or found[6] or found[10] or found[12] or found[14]:
        raise UndecodablePayload("payload has nulls where the schema allows none")
    if slots_bytes >= 12 and _U16(metadata, slots + 10)[0]:
        buffers += table
        _check_compressed(metadata, buffers + _U32(metadata, buffers)[0], memoryview(message.body), decoded_bytes_max)


def _batch_table(metadata: memoryview) -> tuple[int, int, int, int, int]:
    """Return where the table of a record batch and its slots are, the slots' bytes, and fields 1 and 2."""
    root = _U32(metadata, 0)[0]
    version, header = _MESSAGE_SLOTS(metadata, root - _I32(metadata, root)[0])
    if not version or not header or _U16(metadata, root + version)[0] != METADATA_V5:
        # Older versions name their compression elsewhere.
        raise UndecodablePayload("payload is no record batch of Arrow's metadata version 5")
    table = root + header
    table += _U32(metadata, table)[0]
    slots = table - _I32(metadata, table)[0]
    slots_bytes, nodes, buffers = _BATCH_SLOTS(metadata, slots)
    if slots_bytes < 10 or not nodes or not buffers:
        raise UndecodablePayload("payload is no record batch")
    return table, slots, slots_bytes, nodes, buffers


def _custom_metadata(metadata: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield the keys and values of field 4 of the Message table, in their order."""
    pairs = _pointed_at(metadata, _U32(metadata, 0)[0], 4)
    count = _U32(metadata, pairs)[0] if pairs else 0
    if count > METADATA_PAIRS_MAX:
        raise UndecodablePayload(f"payload has {count} pairs of metadata, the bound is {METADATA_PAIRS_MAX}")
    for place in range(pairs + 4, pairs + 4 + 4 * count, 4):
        pair = place + _U32(metadata, place)[0]
        yield _text(metadata, _pointed_at(metadata, pair, 0)), _text(metadata, _pointed_at(metadata, pair, 1))


def _pointed_at(metadata: memoryview, table: int, field: int) -> int:
    """Return where the field of a table points, 0 where the table does not have it."""
    slots = table - _I32(metadata, table)[0]
    slot = 4 + 2 * field
    at = _U16(metadata, slots + slot)[0] if slot + 2 <= _U16(metadata, slots)[0] else 0
    return table + at + int(_U32(metadata, table + at)[0]) if at else 0


def _text(metadata: memoryview, place: int) -> memoryview:
    return metadata[place + 4:place + 4 + _U32(metadata, place)[0]] if place else metadata[:0]


def _check_compressed(metadata: memoryview, vector: int, body: memoryview, decoded_bytes_max: int) -> None:
    """Bound the sizes that buffers begin with: Arrow allocates as much before it looks further."""
    buffers = _U32(metadata, vector)[0]
    if buffers != BUFFERS:
        raise UndecodablePayload(f"payload has {buffers} buffers, the schema has {BUFFERS}")
    total = 0
    for place in range(vector + 4, vector + 4 + 16 * buffers, 16):
        offset, length = _BUFFER(metadata, place)
        if not length:
            continue
        if offset < 0 or length < 8 or offset + length > len(body):
            raise UndecodablePayload(f"payload has a buffer of {length} bytes at {offset}, its body has {len(body)}")
        size = _I64(body, offset)[0]
        if size < NOT_COMPRESSED:
            raise UndecodablePayload(f"payload has a buffer that decompresses to {size} bytes")
        total += max(size, 0)
    if total > decoded_bytes_max:
        raise UndecodablePayload(f"payload decompresses to {total} bytes, the bound is {decoded_bytes_max}")
