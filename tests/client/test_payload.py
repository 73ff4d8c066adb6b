"""Payloads are hostile (rule T11): nothing that a writer stores makes a reader crash, leak or swell."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import hostile_payloads as hostile
import pyarrow as pa
import pytest
import tidemark
from tidemark.batch import ReadBatch
from tidemark.errors import UndecodableBatch
from tidemark.payload import (
    DECODED_BYTES_MAX,
    METADATA_PAIRS_MAX,
    NOTE_BYTES_MAX,
    SCHEMA,
    UndecodablePayload,
    decode,
    encode,
    encode_columns,
    note_of,
)

CLIENT = Path(tidemark.__file__).parent
CHANGED = 10_000
LIES = hostile.by_hand()


def hostile_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Read payloads in a process of its own: a reader that crashes takes it along."""
    return subprocess.run(
        [sys.executable, hostile.__file__, *arguments], capture_output=True, text=True, timeout=300, check=False)


def test_t11_thousands_of_changed_payloads_are_read_or_refused():
    """Rule T11: bits, lengths and offsets changed; what is read holds no byte that the payload does not."""
    done = hostile_run("1", str(CHANGED))
    assert done.returncode == 0, f"the reader ended with {done.returncode}: {done.stderr[-2000:]}"
    ended = json.loads(done.stdout)
    assert ended["by hand undecodable"] == len(LIES)
    assert ended["undecodable"] + ended["read"] == CHANGED
    assert ended["read"] > CHANGED // 20, "changes that do no harm are read"
    assert ended["grown_kib"] < 200 << 10


@pytest.mark.parametrize("lie", LIES)
def test_t11_each_lie_is_refused_with_its_offsets(lie):
    batch = ReadBatch(3, hostile.entry_of(LIES[lie], hostile.COUNT), 1, 3)
    with pytest.raises(UndecodableBatch, match="offsets 1 to 3 of shard 3: ") as caught:
        batch.check()
    assert (caught.value.shard, caught.value.first, caught.value.last) == (3, 1, 3)
    assert batch.payload == LIES[lie], "the bytes stay readable"


def test_t11_a_small_payload_that_is_large_is_not_decompressed():
    payload = hostile.bomb()
    assert len(payload) < 64 << 10
    with pytest.raises(UndecodablePayload, match=f"the bound is {DECODED_BYTES_MAX}"):
        decode(payload, 1)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_t11_the_bound_counts_what_all_buffers_decompress_to(compression):
    payload = encode([b"v" * 10_000] * 20, [b"k" * 500] * 20, [1] * 20, None, compression)
    exact = next(bound for bound in range(210_000, 212_000) if _reads(payload, bound))
    assert decode(payload, 20, exact).num_rows == 20
    with pytest.raises(UndecodablePayload, match=f"decompresses to {exact} bytes, the bound is {exact - 1}"):
        decode(payload, 20, exact - 1)


def _reads(payload: bytes, bound: int) -> bool:
    try:
        decode(payload, 20, bound)
    except UndecodablePayload:
        return False
    return True


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_note_changes_no_column_and_no_note_changes_no_byte(compression):
    plain = hostile.record_batch(compression=compression)
    columns = decode(plain, hostile.COUNT)
    assert encode_columns(columns, compression) == plain, "what a release before notes writes"
    assert note_of(plain) == b""
    for note in (b"\0", b"tidemark.note", bytes(range(256)) * 4):
        noted = encode_columns(columns, compression, note)
        assert note_of(noted) == note
        assert decode(noted, hostile.COUNT).equals(columns)


NOTE, OTHER = (b"tidemark.note", b"n"), (b"pandas", b"o" * 5000)


@pytest.mark.parametrize(("pairs", "note"), [
    ([OTHER], b""), ([OTHER, NOTE], b"n"), ([NOTE, (NOTE[0], b"later")], b"n"), ([(NOTE[0], b"")], b""),
    ([(b"tidemark.not", b"n"), (b"tidemark.notes", b"n"), (b"", b"n")], b""),
    ([*[OTHER] * (METADATA_PAIRS_MAX - 1), NOTE], b"n"), ([(NOTE[0], b"n" * NOTE_BYTES_MAX)], b"n" * NOTE_BYTES_MAX),
])
def test_t11_a_note_is_found_among_what_others_write(pairs, note):
    """Rule T11: the first note counts, and foreign metadata is passed over unread."""
    payload = hostile.with_metadata(*pairs)
    assert note_of(payload) == note
    assert decode(payload, hostile.COUNT).num_rows == hostile.COUNT


@pytest.mark.parametrize(("payload", "why"), [
    (hostile.with_metadata((NOTE[0], b"n" * 1025)), "a note of 1025 bytes, the bound is 1024"),
    (hostile.with_metadata(*[OTHER] * METADATA_PAIRS_MAX, NOTE), "65 pairs of metadata, the bound is 64"),
    (hostile.other_message(), "payload is no record batch"),
    (hostile.with_metadata(NOTE)[:200], "no metadata of a record batch"),
    (b"", "no metadata of a record batch"),
], ids=["long", "many", "other", "cut", "empty"])
def test_t11_a_note_that_no_appender_wrote_is_refused_with_its_offsets(payload, why):
    batch = ReadBatch(3, hostile.entry_of(payload, hostile.COUNT), 1, 3)
    with pytest.raises(UndecodableBatch, match=f"offsets 1 to 3 of shard 3: .*{why}") as caught:
        _ = batch.note
    assert (caught.value.shard, caught.value.first, caught.value.last) == (3, 1, 3)


def test_what_other_arrow_programs_write_is_read():
    """The same schema from a writer that says of every field that it may be null, and knows of no nulls."""
    columns = [
        pa.array([b"a", None], pa.binary()), pa.array([b"x", b"y"], pa.binary()),
        pa.array([1, 2], pa.timestamp("us")),
        pa.array([[("n", b"v")], []], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
    fields = zip(SCHEMA, columns, strict=True)
    schema = pa.schema([field.with_nullable(True).with_type(each.type) for field, each in fields])
    for part in (slice(0, 2), slice(1, 2)):
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)[part]
        entry = hostile.entry_of(bytes(batch.serialize()), batch.num_rows)
        records = list(ReadBatch(0, entry, 0, entry.last).records())
        assert [record.value for record in records] == [b"x", b"y"][part]


def test_t11_one_module_alone_opens_payloads():
    """Rule T11: every later reader goes through the same guard."""
    opening = [
        f"{path.relative_to(CLIENT)}:{node.lineno}"
        for path in sorted(CLIENT.rglob("*.py")) for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "ipc"
    ]
    assert opening
    assert all(place.startswith("payload.py:") for place in opening), opening
