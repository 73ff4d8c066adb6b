"""The example programs run as they stand, against the in-process cluster."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import yaml
from fake_cluster import FakeCluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


async def run(name: str, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / name), *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_append_and_read(cluster: FakeCluster):
    out = await run("append_and_read.py", cluster.addresses()[0], "orders")
    assert "1000 records in 1 runs" in out
    assert "{'source': b'example'}" in out
    assert "1001 records in orders" in out


async def test_without_asyncio(cluster: FakeCluster):
    out = await run("without_asyncio.py", cluster.addresses()[0], "orders")
    assert "100 more" in out
    assert "101 records in orders" in out


async def test_tail_and_resume(cluster: FakeCluster):
    address = cluster.addresses()[0]
    await run("without_asyncio.py", address, "orders")
    assert "101 records" in await run("tail_and_resume.py", address, "orders", "one", "1")
    await run("without_asyncio.py", address, "orders")
    assert "101 records" in await run("tail_and_resume.py", address, "orders", "one", "1")


async def test_documents(cluster: FakeCluster):
    cluster.add_documents("settings", 2)
    out = await run("documents.py", cluster.addresses()[0], "settings")
    assert "too late" in out
    assert "100 written" in out
    assert "99 now, 100 at the pin" in out
    assert "Document(b'theme', b'light'" in out


async def test_keyspaces(cluster: FakeCluster):
    manifests = yaml.safe_load_all((EXAMPLES / "relay-keyspaces.yaml").read_text(encoding="utf-8"))
    tables = {each["metadata"]["name"]: cluster.add_keyspace(each["metadata"]["name"]) for each in manifests}
    out = (await run("keyspaces.py", cluster.addresses()[0])).splitlines()
    unknown = "{'error': 'unknown client'}"
    assert out[:2] == [
        f"projects: {{'name': 'weather', 'enabled': True}} {{'error': 'no such project'}} {unknown}",
        "projects: {'enabled': True, 'name': 'weather', 'cached': True} "
        f"{{'error': 'no such project', 'cached': True}} {unknown}"]
    assert out[2:] == [
        *["0 subscribers: the message waits for one"] * 2, "1 subscriber", "ann has ['wind', 'rain']", "then ['rain']",
        "routes: [] unaddressed: []", "projects of ['ann', 'bob']"]
    assert {name: sorted(each.strings) for name, each in tables.items() if each.strings} == {
        "client-project": [b"ann", b"bob"], "project-data": [b"p-1", b"p-2"]}
    assert {name for name, each in tables.items() if each.elements} == {
        "unaddressed-mailbox", "mailbox", "routing-table"}, "each has had elements"
    assert tables["project-data"].ttls == {b"p-1": None, b"p-2": 60_000}


async def test_query_with_duckdb(cluster: FakeCluster):
    address = cluster.addresses()[0]
    await run("without_asyncio.py", address, "orders")
    told = (await run("query_with_duckdb.py", address, "orders")).splitlines()
    assert sum(int(line.split()[2]) for line in told) == 101, told


async def test_query_with_polars(cluster: FakeCluster):
    cluster.add_documents("settings", 1)
    address = cluster.addresses()[0]
    await run("documents.py", address, "settings")
    assert "shard 0: " in await run("query_with_polars.py", address, "settings")
