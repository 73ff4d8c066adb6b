"""Load the packages of one Debian release as documents: the key is the package's name, the value is JSON.

    tidemark dev up --nodes 3 -f examples/spark/debian-loggroup.yaml
    python examples/spark/load_release.py HOST:PORT debian bookworm    # then trixie, then sid
"""

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import tidemark.sync
from tidemark import Delete, Put

DATA = Path(__file__).parents[1] / "data" / "debian-packages-small.ndjson.gz"


def writes(release: str) -> Iterator[Put | Delete]:
    """Return the changes that lead from the release before to this one."""
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            if record["release"] != release:
                continue
            key = record["key"].encode()
            if record["op"] == "put":
                yield Put(key, json.dumps({**record["doc"], "release": release}).encode())
            else:
                yield Delete(key)


def main(address: str, group: str, release: str) -> None:
    with tidemark.sync.connect(address) as client, client.documents(group) as documents:
        done = documents.put_many(writes(release))
        print(f"{release}: {done.applied} changes written")


if __name__ == "__main__":
    main(*sys.argv[1:])
