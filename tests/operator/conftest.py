"""Fixtures of the operator's tests: a real etcd on a free loopback port, one for the tests of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from etcd_child import EtcdChild
from tidemark_operator.etcd import EtcdStore


@pytest.fixture(scope="module")
def etcd_of_the_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdChild]:
    child = EtcdChild(tmp_path_factory.mktemp("etcd"))
    yield child
    child.kill()


@pytest.fixture
def etcd(etcd_of_the_file: EtcdChild) -> EtcdChild:
    """An etcd without keys, which runs, whatever the test before did to it."""
    etcd_of_the_file.renew()
    return etcd_of_the_file


@pytest.fixture
async def store(etcd: EtcdChild) -> AsyncIterator[EtcdStore]:
    await etcd.ready()
    store = EtcdStore([etcd.url], timeout_ms=2_000)
    yield store
    await store.close()
