"""Index of dependents: a streaming query appends, for each dependency of a changed package, one record to a log, once.

    tidemark apply -f examples/spark/dependents-loggroup.yaml
    python examples/spark/load_release.py HOST:PORT debian bookworm
    python examples/spark/index_dependents.py HOST:PORT debian dependents FOLDER    # both again for trixie

The key of a record is the package that is depended on, its value names the package that depends on it. Each run reads
the changes since the run before and ends. FOLDER holds the query's checkpoint, and its name is part of the id of each
write: to index everything once more, give another folder.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SCHEMA = "seqno bigint, op string, key binary, value struct<version: string, release: string, depends: array<string>>"
PARTS = 4
"""Tasks of each write.  A write that is repeated has the same number, so Spark does not choose it."""

# An entry such as "libc6 (>= 2.14)" or "default-mta | exim4" counts for the first name in it, once for each package.
RECORDS = """
    select explode(array_distinct(transform(last.value.depends, d -> regexp_extract(d, '^[^ :|]+', 0)))) as key,
        to_json(struct(cast(key as string) as package, last.value.version, last.value.release)) as value
    from {last} where last.op = 'PUT'
"""


def records(changes: DataFrame) -> DataFrame:
    """Return the records of a micro-batch: the same ones, in the same order, whenever Spark repeats it.

    A repeated micro-batch ends where it did, but its changes come in another order, and without the versions of a
    package that were replaced before its end.  So the last version counts, and each part is sorted.
    """
    last = changes.groupBy("key").agg(f.max_by(f.struct("op", "value"), "seqno").alias("last"))
    found = changes.sparkSession.sql(RECORDS, last=last)
    return found.repartition(PARTS, "key").sortWithinPartitions("key", "value")


def follow(spark: SparkSession, address: str, group: str, index: str, folder: Path) -> None:
    """Append the records of the changes since the run before."""

    def append(changes: DataFrame, number: int) -> None:
        # Spark repeats a micro-batch when it stopped before it stored the commit: the id makes that the same write.
        records(changes).write.format("tidemark").mode("append").option("endpoints", address).option(
            "group", index).option("writeId", f"{folder.name}-{number}").save()

    changes = (
        spark.readStream.format("tidemark").option("endpoints", address).option("group", group)
        .option("mode", "changes").option("startingOffsets", "earliest")
        .option("valueFormat", "json").schema(SCHEMA).load())
    query = (
        changes.writeStream.foreachBatch(append).option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True).start())
    query.awaitTermination()


def main(address: str, group: str, index: str, folder: str) -> None:
    spark = SparkSession.builder.appName("index-dependents").config("spark.sql.shuffle.partitions", 4).getOrCreate()
    follow(spark, address, group, index, Path(folder))
    names = (
        spark.read.format("tidemark").option("endpoints", address).option("group", index).load()
        .groupBy(f.col("key").cast("string").alias("name")).count().orderBy(f.desc("count"), "name"))
    names.show(5, truncate=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
