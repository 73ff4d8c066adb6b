"""Payloads that a writer made to do harm: honest ones with bits, lengths and offsets changed, and some made by hand.

Run as a program it reads many of them and prints what became of them; a reader that crashes takes it along.
Stays out: judging the outcome (`test_payload`).
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
from tidemark.batch import ReadBatch
from tidemark.errors import UndecodableBatch
from tidemark.payload import NOTE_BYTES_MAX, SCHEMA, decode, encode, encode_columns
from tidemark_core.base.entry import Batch, Entry, Kind, seal
from tidemark_core.base.ids import NOTHING

COUNT = 5
INTERESTING = (
    0, 1, -1, -2, 7, 8, 255, 6_000, 1 << 16, 1 << 20, (1 << 31) - 1, -(1 << 31), 1 << 32, 1_500 << 20, (1 << 63) - 1,
    -(1 << 63),
)


def entry_of(payload: bytes, count: int) -> Entry:
    batch = Batch(b"p" * 16, 0, count, 1, 1, 0, payload)
    return seal(batch, kind=Kind.DATA, epoch=3, prev=NOTHING, prev_chain=0, logged_ms=1)


def honest() -> list[tuple[bytes, bool]]:
    """Return payloads of COUNT records in all shapes, and whether each is compressed."""
    values = [b"", b"a", b"value" * 7, bytes(range(256)), b"z" * 900]
    keys = [b"k%d" % number for number in range(COUNT)]
    headers = [None, (("a", b"1"), ("b", b"")), (), (("name" * 9, b"\0" * 30),), (("ä", b"x"),)]
    times = [1, 2, 3, 4, 5]
    made = []
    for compression in (None, "lz4", "zstd"):
        for columns in ((None, None), (keys, None), ([None, *keys[1:]], headers)):
            made.append((encode(values, columns[0], times, columns[1], compression), compression is not None))
    noted = decode(made[2][0], COUNT)
    return made + [(encode_columns(noted, each, b"note" * 50), each is not None) for each in (None, "lz4", "zstd")]


# --- places -----------------------------------------------------------------------------------------------------------


def body_of(payload: bytes) -> int:
    """Return where the body of a message begins."""
    return 8 + int(struct.unpack_from("<i", payload, 4)[0])


def buffers_of(payload: bytes) -> list[tuple[int, int, int]]:
    """Return of each buffer where its description lies in the payload, its offset in the body, and its bytes."""
    u32 = struct.Struct("<I").unpack_from
    root = 8 + u32(payload, 8)[0]
    slots = root - struct.unpack_from("<i", payload, root)[0]
    table = root + struct.unpack_from("<H", payload, slots + 8)[0]
    table += u32(payload, table)[0]
    slots = table - struct.unpack_from("<i", payload, table)[0]
    vector = table + struct.unpack_from("<H", payload, slots + 8)[0]
    vector += u32(payload, vector)[0]
    places = range(vector + 4, vector + 4 + 16 * u32(payload, vector)[0], 16)
    return [(place, *struct.unpack_from("<qq", payload, place)) for place in places]


def put(payload: bytes, place: int, form: str, *values: int) -> bytes:
    made = bytearray(payload)
    struct.pack_into(form, made, place, *values)
    return bytes(made)


VALUE_OFFSETS, VALUE_BYTES, TIMESTAMPS, LIST_OFFSETS, NAME_BYTES = 4, 5, 7, 9, 13
"""Places of buffers in a message of the schema."""


def at_buffer(payload: bytes, buffer: int, inside: int = 0) -> int:
    """Return where in the payload a byte of a buffer lies."""
    return body_of(payload) + buffers_of(payload)[buffer][1] + inside


# --- by hand ----------------------------------------------------------------------------------------------------------


def by_hand() -> dict[str, bytes]:
    """Return payloads of COUNT records, each with the name of the lie that it tells."""
    plain, full, packed = honest()[0][0], honest()[2][0], honest()[6][0]
    lies = {
        "an offset far behind the values": put(plain, at_buffer(plain, VALUE_OFFSETS, 8), "<i", 6_000),
        "an offset that nothing maps": put(plain, at_buffer(plain, VALUE_OFFSETS, 8), "<i", (1 << 31) - 64),
        "a negative offset": put(plain, at_buffer(plain, VALUE_OFFSETS, 8), "<i", -5_000),
        "offsets that fall": put(plain, at_buffer(plain, VALUE_OFFSETS, 8), "<ii", 900, 2),
        "a list behind its headers": put(full, at_buffer(full, LIST_OFFSETS, 8), "<i", 1 << 20),
        "a name that is no text": put(full, at_buffer(full, NAME_BYTES), "<B", 0xFF),
        "a time before the years": put(plain, at_buffer(plain, TIMESTAMPS, 16), "<q", -(1 << 63)),
        "a time behind the years": put(plain, at_buffer(plain, TIMESTAMPS, 8), "<q", (1 << 63) - 1),
        "an older version of the metadata": record_batch(metadata_version=pa.ipc.MetadataVersion.V4),
        "another type of message": other_message(),
        "values that are null": with_nulls(),
    }
    for buffer in (VALUE_OFFSETS, VALUE_BYTES, TIMESTAMPS):
        place, offset, length = buffers_of(plain)[buffer]
        lies[f"buffer {buffer} is shorter than its column"] = put(plain, place, "<qq", offset, length // 2)
        lies[f"buffer {buffer} lies behind the body"] = put(plain, place, "<qq", offset + (1 << 20), length)
        lies[f"buffer {buffer} is longer than the body"] = put(plain, place, "<qq", offset, 1 << 40)
        place = at_buffer(packed, buffer)
        lies[f"buffer {buffer} decompresses to 1,500 MiB"] = put(packed, place, "<q", 1_500 << 20)
        lies[f"buffer {buffer} decompresses to more than there is"] = put(packed, place, "<q", 60 << 20)
        lies[f"buffer {buffer} decompresses to less than nothing"] = put(packed, place, "<q", -2)
        lies[f"buffer {buffer} is not compressed after all"] = put(packed, place, "<q", -1)
    return lies


def bomb() -> bytes:
    """Return a payload of some KiB whose one value has 256 MiB, all of it true."""
    return encode([bytes(256 << 20)], None, [1], None, "zstd")


def record_batch(**options: object) -> bytes:
    """Return an honest batch as other options of Arrow write it."""
    batch = pa.ipc.read_record_batch(honest()[0][0], SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return bytes(reader.read_next_message().serialize().to_pybytes())


def with_metadata(*pairs: tuple[bytes, bytes]) -> bytes:
    """Return an honest batch with pairs of metadata, in their order."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        metadata = pa.KeyValueMetadata(list(pairs))
        writer.write_batch(pa.ipc.read_record_batch(honest()[0][0], SCHEMA), custom_metadata=metadata)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return bytes(reader.read_next_message().serialize().to_pybytes())


def other_message() -> bytes:
    return bytes(SCHEMA.serialize().to_pybytes())


def with_nulls() -> bytes:
    columns = [pa.nulls(COUNT, field.type) for field in SCHEMA]
    schema = pa.schema([field.with_nullable(True) for field in SCHEMA])
    return bytes(pa.RecordBatch.from_arrays(columns, schema=schema).serialize().to_pybytes())


# --- by dice ----------------------------------------------------------------------------------------------------------


def _flip(dice: random.Random, payload: bytes) -> bytes:
    made = bytearray(payload)
    for _ in range(dice.randint(1, 8)):
        made[dice.randrange(len(made))] ^= 1 << dice.randrange(8)
    return bytes(made)


def _flip_metadata(dice: random.Random, payload: bytes) -> bytes:
    made = bytearray(payload)
    for _ in range(dice.randint(1, 3)):
        made[dice.randrange(8, body_of(payload))] = dice.randrange(256)
    return bytes(made)


def _integer(dice: random.Random, payload: bytes) -> bytes:
    form, size = dice.choice((("<i", 4), ("<q", 8)))
    value = dice.choice(INTERESTING) + dice.randint(-1, 1)
    low, high = -(1 << 8 * size - 1), (1 << 8 * size - 1) - 1
    return put(payload, dice.randrange(0, len(payload) - 8) & ~3, form, min(max(value, low), high))


def _in_buffer(dice: random.Random, payload: bytes) -> bytes:
    described = [each for each in buffers_of(payload) if each[2] >= 8]
    _, offset, length = dice.choice(described)
    return put(payload, body_of(payload) + offset + dice.randrange(0, length - 7), "<i",
               max(-(1 << 31), min(dice.choice(INTERESTING), (1 << 31) - 1)))


def _in_description(dice: random.Random, payload: bytes) -> bytes:
    place, _, _ = dice.choice(buffers_of(payload))
    return put(payload, place + dice.choice((0, 8)), "<q", dice.choice(INTERESTING))


def _cut(dice: random.Random, payload: bytes) -> bytes:
    at = dice.randrange(len(payload))
    return payload[:at] if dice.random() < 0.5 else payload[:at] + payload[at + dice.randint(1, 64):]


def _double(dice: random.Random, payload: bytes) -> bytes:
    at, size = dice.randrange(len(payload)), dice.randint(1, 64)
    return payload[:at] + payload[at:at + size] + payload[at:]


CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _flip, _flip_metadata, _integer, _in_buffer, _in_description, _cut, _double,
)


def by_dice(seed: int, count: int) -> Iterator[tuple[bytes, bool]]:
    """Yield changed payloads, and whether each was compressed."""
    dice, bases = random.Random(seed), honest()
    for number in range(count):
        payload, compressed = dice.choice(bases)
        for _ in range(1 + (dice.random() < 0.3)):
            try:
                payload = CHANGES[number % len(CHANGES)](dice, payload)
            except (struct.error, IndexError, ValueError):
                break   # the first change left nothing to find one's way by
        yield payload, compressed


# --- reading ----------------------------------------------------------------------------------------------------------


def read(payload: bytes, compressed: bool, count: int = COUNT) -> str:
    """Read a payload as the client does; return how it ended."""
    batch = ReadBatch(0, entry_of(payload, count), 0, count - 1)
    try:
        assert len(batch.note) <= NOTE_BYTES_MAX and batch.note in payload
    except UndecodableBatch as error:
        assert (error.shard, error.first, error.last) == (0, 0, count - 1)
    try:
        records = list(batch.records())
    except UndecodableBatch as error:
        assert (error.shard, error.first, error.last) == (0, 0, count - 1)
        return "undecodable"
    assert len(records) == count
    for record in records:
        assert record.timestamp is not None
        parts = [record.value, record.key or b"", *(part for pair in record.headers or () for part in pair)]
        if not compressed:
            for part in parts:
                stored = part.encode() if isinstance(part, str) else part
                assert stored in payload, "a record holds bytes that nothing wrote"
    return "read"


def main(seed: int, count: int) -> None:
    ended: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for payload in by_hand().values():
        ended["by hand " + read(payload, True)] += 1
    for payload, compressed in by_dice(seed, count):
        ended[read(payload, compressed)] += 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({**ended, "grown_kib": grown}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
