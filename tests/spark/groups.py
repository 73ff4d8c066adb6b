"""Groups for the tests of Spark: a manifest for real nodes, and documents on the fake cluster."""

from __future__ import annotations

import json

from tests.fake_in_a_thread import FakeDocuments, FakeInAThread

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
