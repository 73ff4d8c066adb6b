"""The source in a real Spark session: it is found by its name, and refuses what is wrong before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrameReader, SparkSession

NODE = "127.0.0.1:1"
"""Where no node answers: nothing here connects."""


def reading(spark: SparkSession, **options: str | None) -> DataFrameReader:
    given = {"endpoints": NODE, "group": "orders", **options}
    return spark.read.format("tidemark").options(**{name: text for name, text in given.items() if text is not None})


def test_p1_the_format_is_found_without_a_registration(spark: SparkSession) -> None:
    columns = reading(spark).load().schema.simpleString()
    assert columns == (
        "struct<group:string,shard:int,offset:bigint,epoch:bigint,key:binary,value:binary,timestamp:timestamp>")
    assert spark.readStream.format("TIDEMARK").option("group", "orders").load().isStreaming


@pytest.mark.parametrize(("options", "columns"), [
    ({"includeHeaders": "TRUE"},
     "struct<group:string,shard:int,offset:bigint,epoch:bigint,key:binary,value:binary,"
     "headers:array<struct<key:string,value:binary>>,timestamp:timestamp>"),
    ({"mode": "documents"}, "struct<key:binary,value:binary,seqno:bigint>"),
    ({"MODE": "Changes"},
     "struct<shard:int,seqno:bigint,op:string,key:binary,value:binary,timestamp:timestamp,history_id:string>"),
    ({"group": None, "keyspace": "carts", "mode": "keyspace"}, "struct<key:binary,value:binary,range:int>"),
])
def test_each_mode_has_its_columns(spark: SparkSession, options: dict[str, str | None], columns: str) -> None:
    assert reading(spark, **options).load().schema.simpleString() == columns


def test_p4_a_wrong_schema_of_a_query_is_refused_before_anything_is_read(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="There is no column 'offsets' in mode=log; there are group string"):
        reading(spark).schema("key binary, offsets bigint").load().collect()
    with pytest.raises(PySparkException, match="Column 'offset' is bigint, not string"):
        reading(spark).schema("offset string").load().collect()


def test_p21_an_unknown_option_of_a_query_names_the_nearest_and_no_plan_shows_a_key(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PySparkException, match="did you mean 'includeHeaders'") as refused:
        reading(spark, includeHeader="hush").load()
    assert "hush" not in str(refused.value)
    with pytest.raises(PySparkException, match=r"path: is no option of this source: use 'group'"):
        spark.read.format("tidemark").load("orders")
    tls = {"tls.ca": "/tls/ca.pem", "tls.cert": "/tls/it.pem", "tls.key": "/tls/hush.pem"}
    capsys.readouterr()
    reading(spark, **tls).load().explain("extended")
    shown = capsys.readouterr().out
    assert "tidemark" in shown.lower() and "hush" not in shown


def test_what_is_not_served_is_said_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("tidemark").option("group", "orders").option("mode", "documents").load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match="mode=documents shows one state and has no stream"):
        writer.start().awaitTermination()
