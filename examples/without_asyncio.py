"""The same client for programs without an event loop.

    python examples/without_asyncio.py HOST:PORT GROUP
"""

import sys

import tidemark.sync
from tidemark import errors


def main(address: str, group: str) -> None:
    with tidemark.sync.connect(address) as client:
        try:
            with client.appender(group, compression="zstd") as appender:
                print(appender.append(b"one", key=b"k"))
                later = [appender.append_later(b"%d" % number) for number in range(100)]
                appender.flush()
                print(len({future.result() for future in later}), "more")
        except errors.OutcomeUnknown as error:
            print(f"{error}. {error.advice}")
        print(sum(len(batch) for batch in client.read(group).batches()), "records in", group)


if __name__ == "__main__":
    main(*sys.argv[1:])
