"""Follow a log group under a name, and go on after a restart where the last run ended: the cluster keeps the place.

    python examples/tail_and_resume.py HOST:PORT GROUP NAME
"""

import asyncio
import sys

import tidemark


async def main(address: str, group: str, name: str, seconds: float = 10.0) -> None:
    async with await tidemark.connect(address) as client:
        await client.group(group)
        reader = client.read(group, subscription=name, until=None)
        asyncio.get_running_loop().call_later(seconds, lambda: asyncio.ensure_future(reader.close()))
        count = 0
        # A record counts as handled when the next one is asked for: a crash repeats, it never skips.
        async for record in reader:
            count += 1
            print(record.shard, record.offset, record.value.decode(errors="replace")[:60])
        print(f"{count} records")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    tidemark.run(main(*arguments[:3], *map(float, arguments[3:])))
