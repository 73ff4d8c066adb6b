"""Fixtures of the operator's tests: a real etcd on a free loopback port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from etcd_child import EtcdChild
from tidemark_operator.etcd import EtcdStore


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdChild]:
    child = EtcdChild(tmp_path)
    child.start()
    yield child
    child.kill()


@pytest.fixture
async def store(etcd: EtcdChild) -> AsyncIterator[EtcdStore]:
    await etcd.ready()
    store = EtcdStore([etcd.url], timeout_ms=2_000)
    yield store
    await store.close()
