"""SQL over a log: DuckDB takes record batches as they come, so a log larger than memory is no matter.

    pip install duckdb
    python examples/query_with_duckdb.py HOST:PORT GROUP
"""

import sys

import duckdb
import tidemark.sync


def main(address: str, group: str) -> None:
    with tidemark.sync.connect(address) as client, duckdb.connect() as database:
        database.register("records", client.read(group).to_reader())
        found = database.sql(
            'select shard, count(*) as records, sum(octet_length(value)) as bytes, max("offset") as newest '
            "from records group by shard order by shard")
        for shard, records, size, newest in found.fetchall():
            print(f"shard {shard}: {records} records, {size} bytes, the newest at offset {newest}")


if __name__ == "__main__":
    main(*sys.argv[1:])
