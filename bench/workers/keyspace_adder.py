"""One client process that adds members to one large Set and to many small ones, in turns, one add at a time."""

from __future__ import annotations

import json
import sys
import time

import tidemark


def small_key(number: int) -> bytes:
    """Return the key of a small Set."""
    return b"small/%06d" % number


def member_of(number: int) -> bytes:
    """Return a member of any Set."""
    return b"%012d" % number


async def main(addresses: list[str], keyspace: str, large: str, members: int, adds: int, warm_adds: int) -> None:
    """Print the times of adds of new members: each to the large Set, then to a small one that had none before."""
    times: dict[str, list[float]] = {"large": [], "small": []}
    async with await tidemark.connect(addresses) as client:
        sets = client.keyspace(keyspace)
        if not await sets.sismember(large.encode(), member_of(0)):
            raise LookupError(f"the Set {large!r} has no members")
        for number in range(adds):
            for name, key in (("large", large.encode()), ("small", small_key(number))):
                began = time.perf_counter()
                await sets.sadd(key, member_of(members + number))
                if number >= warm_adds:
                    times[name].append(1000 * (time.perf_counter() - began))
    print(json.dumps(times), flush=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
