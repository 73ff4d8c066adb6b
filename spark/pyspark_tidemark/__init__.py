"""Spark reads and writes Tidemark: `format("tidemark")` finds this package by its name, without a registration.

    spark.read.format("tidemark").option("endpoints", "127.0.0.1:6690").option("group", "orders").load()

Spark imports every package whose name begins with `pyspark_` and takes `DefaultSource` from it.

The rules, with reason and tests in `docs/protocols/spark.md`:

P1   Importing the package is cheap and has no effect
P2   An older PySpark gets one sentence
P3   Filters narrow what is read, and never what is shown
P4   The user's schema decides
P5   Any stored record is a row or a named error
P6   Partitions follow from offsets alone
P7   Shards that come and go are seen, and a run that is to end does
P8   Rate limits are proportional and starve no shard
P9   Limits and ranges count offsets
P10  Lost offsets fail a query, or are left out with a warning
P11  Offsets name exactly the shards that exist
P12  A query that has enough leaves nothing open
P13  Tasks read through the loss of a leader
P15  A row that is written is in the log once, or the write fails
P16  A batch that is written is marked when it is complete, and readers can stop there
P17  What cannot be written is refused in one sentence
P18  Progress tells how far a query is behind
P19  A batch of changes ends at one cut of all shards
P20  A checkpoint of one release is read by the next
P21  Options are checked and keep secrets
P22  The page says what there is
P23  A query of documents shows one cut
P24  A batch of changes leads from one cut to the next
P25  Offsets belong to one group, not to a name
P26  A query of a keyspace reads each range once
"""

from .source import TidemarkSource as DefaultSource

__all__ = ["DefaultSource"]
