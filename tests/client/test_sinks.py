"""Sinks of a group through the client: joins, marks, and how far each has come (rules W1, W2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tidemark.sync
from tidemark import SinkEnd, errors

from tests.fake_in_a_thread import FakeInAThread


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    started = FakeInAThread(shards=2, nodes=1)
    yield started
    started.stop()


ENDS = (SinkEnd(0, 9, 5, 77), SinkEnd(1, 4, 2, 78))


async def test_w2_a_batch_is_marked_once_all_its_parts_have_joined(connect_to) -> None:
    _, client = await connect_to(nodes=3, shards=2)
    sinks = client.sinks("orders")
    assert await sinks.list() == () and await sinks.get("job 1") is None
    for part in (0, 1, 2):
        assert await sinks.join("job 1", 0, part) is False
    with pytest.raises(errors.RequestRefused, match="part 2 has joined") as caught:
        await sinks.mark("job 1", 0, 2, ENDS)
    assert caught.value.reason == "PART_LEFT_OUT"
    await sinks.mark("job 1", 0, 3, ENDS[::-1])
    await sinks.mark("job 1", 0, 3, ENDS)
    assert await sinks.join("job 1", 0, 1) is True
    with pytest.raises(errors.RequestRefused, match="other ends"):
        await sinks.mark("job 1", 0, 3, ENDS[:1])
    await sinks.join("job 1", 1, 5, lease_s=60)
    found = await sinks.get("job 1")
    assert found is not None
    assert (found.batch, found.joined, found.marked, found.parts, found.lease_ms) == (1, 1, 0, 3, 60_000)
    assert [end[1:] for end in found.ends] == list(ENDS) and {end.batch for end in found.ends} == {0}
    assert await sinks.list() == (found,)
    assert await sinks.delete("job 1") is True and await sinks.delete("job 1") is False


def test_blocking_calls_do_the_same(fake: FakeInAThread) -> None:
    with tidemark.sync.connect(fake.address) as client:
        sinks = client.sinks("orders")
        assert sinks.join("job", 3, 0) is False
        sinks.mark("job", 3, 1, ENDS)
        found = sinks.get("job")
        assert found is not None and found.marked == 3 and sinks.list() == (found,)
        assert sinks.delete("job") is True


@pytest.mark.parametrize(("arguments", "field"), [
    (("", 0, 0), "sink"), ((7, 0, 0), "sink"), (("a\n", 0, 0), "sink"), (("a", -1, 0), "batch"),
    (("a", True, 0), "batch"), (("a", 1 << 63, 0), "batch"), (("a", 0, 16_384), "part"),
])
async def test_wrong_arguments_are_named_and_nothing_is_sent(
    connect_to, arguments: tuple[Any, ...], field: str
) -> None:
    cluster, client = await connect_to(nodes=1, shards=1)
    with pytest.raises(errors.InvalidArgument, match=field):
        await client.sinks("orders").join(*arguments)
    with pytest.raises(errors.InvalidArgument, match="ends"):
        await client.sinks("orders").mark("a", 0, 1, [SinkEnd(0, -1, 0, 0)])
    with pytest.raises(errors.InvalidArgument, match="lease_s"):
        await client.sinks("orders").join("a", 0, 0, lease_s=0.1)
    with pytest.raises(errors.UnknownGroup):
        await client.sinks("nothing").list()
    assert cluster.groups["orders"][0].sinks == {}
