"""Follow a log group, and go on after a restart where the last run ended.

    python examples/tail_and_resume.py HOST:PORT GROUP positions.json
"""

import asyncio
import json
import sys
from pathlib import Path

import tidemark


def load(path: Path) -> dict[int, int]:
    """Return the offset to go on from, by shard; a shard that is not in it begins at the earliest record."""
    return {int(shard): offset for shard, offset in json.loads(path.read_text()).items()} if path.exists() else {}


def save(path: Path, positions: dict[int, int]) -> None:
    path.write_text(json.dumps(positions))


async def main(address: str, group: str, file: str, seconds: float = 10.0) -> None:
    path = Path(file)
    positions = load(path)
    async with await tidemark.connect(address) as client:
        await client.group(group)
        reader = client.read(group, from_=positions, until=None)
        asyncio.get_running_loop().call_later(seconds, lambda: asyncio.ensure_future(reader.close()))
        count = 0
        async for batch in reader.batches():
            for record in batch.records():
                count += 1
                print(record.shard, record.offset, record.value.decode(errors="replace")[:60])
            # What was handled is saved after handling it: a crash repeats, it never skips.
            save(path, reader.positions)
        print(f"{count} records")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    tidemark.run(main(*arguments[:3], *map(float, arguments[3:])))
