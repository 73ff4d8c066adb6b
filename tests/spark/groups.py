"""Groups for the tests of Spark: manifests for real nodes, and documents on the fake cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tidemark
from pyspark_tidemark.options import InvalidOption
from tidemark_operator import local

from tests.fake_in_a_thread import FakeDocuments, FakeInAThread
from tests.waiting import until

THINGS = "things"
"""The group of documents."""


def manifest(name: str, kind: str = "Log") -> str:
    """Return the manifest of a group of two shards on the local cluster `real`."""
    return json.dumps({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": "real"}, "shards": 2, "kind": kind,
            "replication": {"factor": 3, "defaultAck": "Quorum", "spread": "Node"},
        },
    })


def keyspace(name: str, ranges: int) -> str:
    """Return the manifest of a keyspace on the local cluster `real`."""
    return json.dumps({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "Keyspace", "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "real"}, "partitions": ranges, "replication": {"spread": "Node"}},
    })


@asynccontextmanager
async def real_things(folder: Path) -> AsyncIterator[tuple[local.LocalRuntime, tidemark.Client]]:
    """Run the group of documents on three real nodes, with a leader in each shard."""
    runtime = await local.up(folder, nodes=3, cluster="real")
    try:
        await runtime.apply(manifest(THINGS, "Documents"))
        async with await tidemark.connect(runtime.bootstrap()) as client:
            await until(lambda: client.routing.find(THINGS) and all(client.routing.leader(THINGS, n) for n in (0, 1)))
            yield runtime, client
    finally:
        await local.down(folder, wipe=True)


def assert_refused(query: Callable[[], object], field: str, said: str) -> None:
    """Check that a query is refused, with the option and the reason named."""
    with pytest.raises(InvalidOption) as refused:
        query()
    assert refused.value.field == field and said in str(refused.value)


def add_things(fake: FakeInAThread) -> None:
    """Add documents in two shards."""
    async def add() -> None:
        fake.cluster.add_documents(THINGS, 2)

    fake.call(add())


def documents_of(fake: FakeInAThread, index: int) -> FakeDocuments:
    """Return the documents of a shard, for their faults and what they were asked."""
    found = fake.cluster.groups[THINGS][index].documents
    assert isinstance(found, FakeDocuments)
    return found
