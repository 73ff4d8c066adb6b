"""Documents as a data frame: Polars takes the table of a scan, here at a pin, so all of it is one state.

    pip install polars
    python examples/query_with_polars.py HOST:PORT GROUP
"""

import sys

import polars
import tidemark.sync


def main(address: str, group: str) -> None:
    with tidemark.sync.connect(address) as client, client.documents(group) as documents:
        with documents.pin("query-with-polars", ttl_s=60) as pin:
            frame = polars.from_arrow(pin.scan().to_arrow())
        sizes = frame.group_by("shard").agg(
            polars.len().alias("documents"), polars.col("value").bin.size().sum().alias("bytes"))
        for shard, count, size in sizes.sort("shard").rows():
            print(f"shard {shard}: {count} documents, {size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
