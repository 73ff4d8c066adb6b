"""Put, change and read documents; needs a group of kind Documents.

    tidemark dev up -f examples/dev-cluster.yaml -f examples/settings-loggroup.yaml
    python examples/documents.py HOST:PORT settings
"""

import sys

import tidemark
from tidemark import Put, errors


async def main(address: str, group: str = "settings") -> None:
    async with await tidemark.connect(address) as client:
        await client.group(group)
        async with client.documents(group) as documents:
            await documents.put(b"theme", b"dark")

            # Compare and set: read, decide, write over what was read; who comes too late hears what is there.
            read = await documents.get(b"theme")
            assert read is not None
            written = await documents.put(b"theme", b"light", expected=read.seqno)
            try:
                await documents.put(b"theme", b"blue", expected=read.seqno)
            except errors.ConditionFailed as error:
                print("too late" if error.found == written.seqno else error)

            # Many at once, and a time to live.
            done = await documents.put_many(Put(b"user/%03d" % number, b"{}", ttl_s=3600) for number in range(100))
            print(f"{done.applied} written")

            # A pin shows the documents as they were, whatever is written meanwhile.
            async with await documents.pin("example", ttl_s=60) as pin:
                await documents.delete(b"user/000")
                now = [document.key async for document in documents.scan(prefix=b"user/", ordered=True)]
                then = [document.key async for document in pin.scan(prefix=b"user/", ordered=True)]
                print(f"{len(now)} now, {len(then)} at the pin")

            # Any member shows what this program wrote.
            theme = await documents.get(b"theme", level="follower", min_seqno=documents.written)
            print(theme)


if __name__ == "__main__":
    tidemark.run(main(*sys.argv[1:]))
