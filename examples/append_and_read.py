"""Append records to a log group and read them back.

    tidemark dev up -f examples/dev-cluster.yaml -f examples/packages-loggroup.yaml
    python examples/append_and_read.py $(tidemark dev status --json | python -c \
        'import json, sys; print(next(p["address"] for p in json.load(sys.stdin)["processes"] if p["role"] == "node"))')
"""

import sys

import tidemark


async def main(address: str, group: str = "packages") -> None:
    async with await tidemark.connect(address) as client:
        await client.group(group)
        async with client.appender(group) as appender:
            # One record: the answer says where it lies, on a majority of disks.
            place = await appender.append(b"hello", key=b"greeting", headers={"source": b"example"})
            print(f"shard {place.shard}, offset {place.offset}, epoch {place.epoch}, {place.durability.name}")

            # Many records at once; records of one key keep their order.
            answer = await appender.append_batch([tidemark.Record(b"%d" % n, b"counter") for n in range(1000)])
            print(f"{len(answer)} records in {len(answer.ranges)} runs")

        count = 0
        async for record in client.read(group):
            count += 1
            if record.key == b"greeting":
                print(record.value.decode(), record.timestamp, dict(record.headers or ()))
        print(f"{count} records in {group}")


if __name__ == "__main__":
    tidemark.run(main(*sys.argv[1:]))
