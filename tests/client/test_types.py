"""What type checkers see of the client: a small program of a user, and the options that calls pass on."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from tidemark import Appender, Client, Documents, Pin, client, sync
from tidemark.options import (
    AppenderOptions,
    DocumentsOptions,
    RangeOptions,
    ReadOptions,
    RecordOptions,
    ScanOptions,
    WriteOptions,
)

PROGRAM = """
from typing import assert_type

import tidemark
import tidemark.sync


def waiting() -> None:
    with tidemark.sync.connect("127.0.0.1:6690", timeout_s=2) as client, client.appender("orders") as appender:
        assert_type(appender.append(b"v", key=b"k", durability=tidemark.QUORUM), tidemark.Appended)
        assert_type(appender.append_later(b"v").result(), tidemark.Appended)
        assert_type(appender.append_batch([b"v"])[0], tidemark.Appended)
        for record in client.read("orders", from_={0: 7}, subscription="billing"):
            assert_type(record, tidemark.Record)
        for batch in client.read("orders").batches():
            assert_type(batch, tidemark.ReadBatch)
        for item in client.read("orders", gaps=True):
            assert_type(item, tidemark.Record | tidemark.Gap)
        assert_type(client.latest("orders", 0), int)
        assert_type(client.read("orders").stats, tidemark.ReadStats)
        with client.documents("settings", level="leader") as documents:
            assert_type(documents.put(b"k", b"v", expected=0, ttl_s=3.5).seqno, int)
            assert_type(documents.get(b"k", min_seqno=documents.written), tidemark.Document | None)
            for document in documents.scan(prefix=b"k", ordered=True):
                assert_type(document, tidemark.Document)
            with documents.pin("nightly", 60) as pin:
                assert_type(pin.get_many([b"k"]), dict[bytes, tidemark.Document])
        carts = client.keyspace("carts", timeout_s=2)
        assert_type(carts.set_many({b"k": b"v"}, ttl_s=60), dict[bytes, tidemark.KeyWritten])
        assert_type(carts.get(b"k", r=1).value, bytes | None)
        for key, value in carts.scan(token=None):
            assert_type((key, value), tuple[bytes, bytes])


async def running() -> None:
    async with await tidemark.connect("127.0.0.1:6690") as client, client.appender("orders") as appender:
        assert_type(await appender.append(b"v"), tidemark.Appended)
        async for record in client.read("orders"):
            assert_type(record, tidemark.Record)
        async for batch in client.read("orders", until=None).batches():
            assert_type(batch, tidemark.ReadBatch)
        async for item in client.read("orders", gaps=True).batches():
            assert_type(item, tidemark.ReadBatch | tidemark.Gap)
        async with client.documents("settings") as documents:
            assert_type(await documents.put(b"k", b"v"), tidemark.Written)
            writes: list[tidemark.Put | tidemark.Delete] = [tidemark.Put(b"k", b"v"), tidemark.Delete(b"l")]
            assert_type(await documents.batch(writes), list[tidemark.Written])
            assert_type(await documents.put_many([(b"k", b"v"), tidemark.Delete(b"k")]), tidemark.BulkWritten)
            async for document in documents.scan():
                assert_type(document, tidemark.Document)
            assert_type((await documents.describe())[0], tidemark.ShardDocuments)
        carts = client.keyspace("carts")
        assert_type(await carts.hset(b"k", b"field", b"v", w=2), tidemark.KeyWritten)
        async for page in carts.hgetall(b"k").pages():
            assert_type(page, list[tuple[bytes, bytes]])
        assert_type(await carts.smembers(b"k").all(), list[bytes])
        reader: tidemark.Reader = client.read("orders")
        assert_type(await reader.next_batches(3), list[tidemark.ReadBatch | tidemark.Gap])


tidemark.run(running())
"""


def judged(program: str, directory: Path) -> tuple[int, str]:
    """Return exit code and output of mypy for a program of a user, outside this checkout."""
    (directory / "program.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(directory / "cache"), "program.py"]
    finished = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    return finished.returncode, finished.stdout + finished.stderr


def test_a_program_of_a_user_has_types(tmp_path: Path):
    code, said = judged(PROGRAM, tmp_path)
    assert code == 0, said
    wrong = PROGRAM.replace('client.latest("orders", 0)', 'client.latest("orders", 0, timeout=1)')
    wrong += 'tidemark.sync.connect("127.0.0.1:6690").read("orders", form_=3)\n'
    code, said = judged(wrong, tmp_path)
    assert code == 1
    assert 'Unexpected keyword argument "timeout"' in said
    assert 'Unexpected keyword argument "form_"' in said


def keywords(function: Any) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(("options", "function", "apart"), [
    (RecordOptions, Appender.append, set()), (AppenderOptions, Client.appender, set()),
    (ReadOptions, Client.read, {"gaps"}), (DocumentsOptions, Client.documents, set()),
    (WriteOptions, Documents.put, set()), (ScanOptions, Documents.scan, set()), (RangeOptions, Pin.scan, set())])
def test_options_are_those_of_the_call(options: type, function: Any, apart: set[str]):
    hints = get_type_hints(function)
    assert get_type_hints(options) == {name: hints[name] for name in keywords(function).keys() - apart}


@pytest.mark.parametrize("name", [
    "outcome", "limbo", "latest", "earliest", "offset_at", "subscriptions", "commit_position", "delete_subscription",
    "explain_read", "keyspace", "connect"])
def test_the_synchronous_call_takes_what_the_other_takes(name: str):
    here, there = (sync, client) if name == "connect" else (sync.SyncClient, Client)
    assert keywords(getattr(here, name)) == keywords(getattr(there, name))


@pytest.mark.parametrize(("here", "there", "name"), [
    *((sync.SyncDocuments, Documents, name) for name in (
        "delete", "batch", "put_many", "get", "get_many", "pin", "pinned", "unpin", "describe")),
    *((sync.SyncPin, Pin, name) for name in ("get", "get_many", "renew"))])
def test_the_synchronous_documents_take_what_the_others_take(here: type, there: type, name: str):
    assert keywords(getattr(here, name)) == keywords(getattr(there, name))


def test_no_public_call_of_the_synchronous_client_leaves_a_type_open():
    for owner in (
        sync.SyncClient, sync.SyncAppender, sync.SyncReader, sync.SyncDocuments, sync.SyncScan, sync.SyncPin,
        sync.SyncKeyspace, sync.SyncPages
    ):
        for name, function in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                for what, hint in get_type_hints(function).items():
                    assert hint is not Any, f"{owner.__name__}.{name}: {what}"
