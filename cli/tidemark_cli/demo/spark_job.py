"""The Spark job of the demo: packages and their size by section, out of the log of changes, and a copy of that log.

Runs in a process of its own: `python -m tidemark_cli.demo.spark_job ENDPOINTS GROUP COPY FOLDER`.  Prints one JSON
object: Spark's version, rows of section, packages and installed KiB, and how many rows of the copy are missing or more.
The copy is written twice under one id: the second time nothing is left to write.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "shard int, offset bigint, "
    "value struct<op: string, key: string, doc: struct<section: string, installed_kib: bigint>>"
)
QUERY = """
    with latest as (select max_by(value, offset) as value from changes group by shard, value.key)
    select value.doc.section, count(*) as packages, sum(value.doc.installed_kib) as installed_kib
    from latest where value.op = 'put' group by 1 order by packages desc, section
"""
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds: the quick compiler, and no threads that collect garbage."""


def main() -> None:
    endpoints, group, copy, folder = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]").appName("tidemark-demo")
        .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", folder).config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.driver.extraJavaOptions", JVM)
        .getOrCreate()
    )
    changes = (
        spark.read.format("tidemark").option("endpoints", endpoints).option("group", group)
        .option("valueFormat", "json").schema(SCHEMA).load()
    )
    changes.createOrReplaceTempView("changes")
    rows = [list(row) for row in spark.sql(QUERY).collect()]

    def records(name: str) -> DataFrame:
        source = spark.read.format("tidemark").option("endpoints", endpoints).option("group", name)
        return source.load().select("key", "value", "timestamp")

    for _ in range(2):
        sink = records(group).write.format("tidemark").option("endpoints", endpoints).option("group", copy)
        sink.option("writeId", "demo").mode("append").save()
    copied, original = records(copy), records(group)
    mismatches = original.exceptAll(copied).count() + copied.exceptAll(original).count()
    print(json.dumps({
        "spark": spark.version, "rows": rows, "copied": copied.count(), "copy_mismatches": mismatches}))
    spark.stop()


if __name__ == "__main__":
    main()
