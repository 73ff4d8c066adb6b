"""Spark reads Tidemark: `spark.read.format("tidemark")` finds this package by its name, without a registration.

    spark.read.format("tidemark").option("endpoints", "127.0.0.1:6690").option("group", "orders").load()

Spark imports every package whose name begins with `pyspark_` and takes `DefaultSource` from it.

The rules, with reason and tests in `docs/protocols/spark.md`:

P1   Importing the package is cheap and has no effect
P2   An older PySpark gets one sentence
P4   The user's schema decides
P6   Partitions follow from offsets alone
P8   Rate limits are proportional and starve no shard
P11  Offsets name exactly the shards that exist
P20  A checkpoint of one release is read by the next
P21  Options are checked and keep secrets
"""

from .source import TidemarkSource as DefaultSource

__all__ = ["DefaultSource"]
