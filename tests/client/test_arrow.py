"""Reads and scans as Arrow tables and record batch readers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
import tidemark.sync
from tidemark import Client, arrow
from tidemark.errors import InvalidArgument

from tests.fake_in_a_thread import FakeInAThread

COUNT = 500


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    started = FakeInAThread(shards=2, nodes=3)

    async def add() -> None:
        started.cluster.add_documents("things", 2)

    started.call(add())
    yield started
    started.stop()


def test_a_read_is_a_table_and_a_reader_of_whole_columns(fake: FakeInAThread) -> None:
    with tidemark.sync.connect(fake.address) as client:
        with client.appender("orders", batch_records=7) as appender:
            for number in range(COUNT):
                key, headers = (b"k%d" % number, {"h": b"x"}) if number % 3 else (None, None)
                appender.append_later(b"%d" % number, key=key, timestamp=number, headers=headers)
        expected = {(each.shard, each.offset): each for each in client.read("orders")}
        table = client.read("orders").to_arrow()
        with client.read("orders").to_reader() as reader:
            assert reader.schema == arrow.RECORDS == table.schema
            streamed = pa.Table.from_batches(reader, arrow.RECORDS)
        assert len(expected) == COUNT == table.num_rows
        for each in (table, streamed):
            rows = {(row["shard"], row["offset"]): row for row in each.to_pylist()}
            assert rows.keys() == expected.keys()
            for place, record in expected.items():
                row = rows[place]
                assert (row["key"], row["value"], row["epoch"]) == (record.key, record.value, record.epoch)
                assert row["timestamp"].timestamp() * 1_000_000 == pytest.approx(record.timestamp_us, abs=0.5)
                headers = row["headers"] and tuple((pair["key"], pair["value"]) for pair in row["headers"])
                assert headers == record.headers
        part = client.read("orders", shards=[0], from_=10, until=19).to_arrow()
        assert part.column("offset").to_pylist() == list(range(10, 20))
        assert client.read("orders", shards=[1], from_="latest").to_arrow().num_rows == 0


def test_a_table_needs_an_end_and_has_no_gaps(fake: FakeInAThread) -> None:
    with tidemark.sync.connect(fake.address) as client:
        with pytest.raises(InvalidArgument, match="until: is None, and a table has an end"):
            client.read("orders", until=None).to_arrow()
        with pytest.raises(InvalidArgument, match="gaps: is True"):
            client.read("orders", gaps=True).to_reader()


def test_a_scan_is_a_table(fake: FakeInAThread) -> None:
    with tidemark.sync.connect(fake.address) as client, client.documents("things") as documents:
        documents.put_many([(b"%d" % number, b"v") for number in range(50)])
        table = documents.scan().to_arrow()
        assert table.schema == arrow.DOCUMENTS
        assert sorted(table.column("key").to_pylist()) == sorted(each.key for each in documents.scan())
        with documents.pin("p", 60) as pin:
            documents.put(b"0", b"new")
            batches = list(pin.scan(prefix=b"0").to_reader())
        assert [row["value"] for batch in batches for row in batch.to_pylist()] == [b"v"]


async def test_the_asynchronous_client_has_tables_too(connect_to) -> None:
    client: Client = (await connect_to(nodes=1, shards=1))[1]
    async with client.appender("orders") as appender:
        await appender.append_batch([b"a", b"b"])
    table = await client.read("orders").to_arrow()
    assert table.schema == arrow.RECORDS and table.column("value").to_pylist() == [b"a", b"b"]
    with pytest.raises(InvalidArgument, match="until: is None"):
        await client.read("orders", until=None).to_arrow()
