"""`tidemark read`: records of a log group to standard output.

Values are written as they are, one per line; `--json` writes one document, `--jsonl` one object per line.
Stays out: following leaders and failovers (client).
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
from typing import Annotated, Any

import tidemark
import typer

from . import target
from .failures import INTERRUPTED
from .options import DEFAULT_DIR, ClusterOption, DirOption, GroupArgument, JsonOption, TimeoutOption
from .output import note

FLUSH_EVERY = 200


def text_or_base64(name: str, data: bytes | None) -> dict[str, Any]:
    """Return bytes as they fit into JSON: text where they are UTF-8, else base64 under another name."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def record_document(record: tidemark.Record) -> dict[str, Any]:
    document: dict[str, Any] = {
        "shard": record.shard, "offset": record.offset, "epoch": record.epoch,
        "timestamp": record.timestamp.isoformat() if record.timestamp else None,
        **text_or_base64("key", record.key), **text_or_base64("value", record.value),
    }
    if record.headers:
        document["headers"] = [{"name": name, **text_or_base64("value", value)} for name, value in record.headers]
    return document


class _Writer:
    """Writes records in the form asked for."""

    def __init__(self, *, form: str, keys: bool) -> None:
        self._form = form
        self._keys = keys
        self._out = sys.stdout.buffer
        self.count = 0

    def write(self, record: tidemark.Record) -> None:
        out = self._out
        if self._form == "plain":
            if self._keys:
                out.write((record.key or b"") + b"\t")
            out.write(record.value + b"\n")
        else:
            line = json.dumps(record_document(record), ensure_ascii=False).encode()
            if self._form == "json":
                out.write(b",\n" if self.count else b"[\n")  # an error before the first record stands alone
                out.write(line)
            else:
                out.write(line + b"\n")
        self.count += 1

    def flush(self) -> None:
        self._out.flush()

    def end(self) -> None:
        if self._form == "json":
            self._out.write(b"\n]\n" if self.count else b"[]\n")
        self._out.flush()


def start_of(text: str) -> int | str:
    """Return `earliest` or an offset."""
    return _bound("--from", text, tidemark.EARLIEST)


def end_of(text: str) -> int | str:
    """Return `latest` or an offset."""
    return _bound("--until", text, tidemark.LATEST)


def _bound(option: str, text: str, word: str) -> int | str:
    if text == word:
        return word
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither {word!r} nor an offset", param_hint=option)
    return int(text)


def read(
    group: GroupArgument,
    from_: Annotated[str, typer.Option("--from", metavar="OFFSET|earliest", help="First offset wanted.")] = "earliest",
    until: Annotated[str, typer.Option("--until", metavar="OFFSET|latest", help="Last offset wanted.")] = "latest",
    tail: Annotated[bool, typer.Option("--tail", help="Go on with what is appended later, until Ctrl-C.")] = False,
    shards: Annotated[list[int] | None, typer.Option("--shard", min=0, help="Only this shard; repeatable.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after so many records.")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Write the key and a tab in front of each value.")] = False,
    as_json: JsonOption = False,
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="Write one JSON object per record and line.")] = False,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
) -> None:
    """Read the records of GROUP, each shard in its order."""
    if as_json and as_jsonl:
        raise typer.BadParameter("--json and --jsonl exclude each other", param_hint="--jsonl")
    if as_json and tail and limit is None:
        raise typer.BadParameter("a tail has no end, so it is no JSON document; use --jsonl", param_hint="--json")
    start, end = start_of(from_), None if tail else end_of(until)
    writer = _Writer(form="json" if as_json else "jsonl" if as_jsonl else "plain", keys=keys)
    interrupted = False

    async def copy(reader: tidemark.Reader) -> None:
        while batches := await reader.next_batches(16):
            for batch in batches:
                for record in batch.records():
                    writer.write(record)
                    if limit is not None and writer.count >= limit:
                        return
                    if writer.count % FLUSH_EVERY == 0:
                        await asyncio.sleep(0)  # a Ctrl-C is heard between records too
            if tail:
                writer.flush()

    async def main() -> None:
        nonlocal interrupted
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            reader = client.read(group, shards=shards, from_=start, until=end, timeout_s=timeout_s)
            task = asyncio.create_task(copy(reader))

            def interrupt() -> None:
                nonlocal interrupted
                interrupted = True
                task.cancel()

            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGINT, interrupt)
            try:
                await task
            except asyncio.CancelledError:
                if not interrupted:
                    raise
            finally:
                loop.remove_signal_handler(signal.SIGINT)
                await reader.close()

    try:
        tidemark.run(main())
        writer.end()
    except BrokenPipeError:
        # Whoever reads us has enough, as `head` does; Python would complain once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if interrupted:
        note(f"interrupted after {writer.count} records")
        raise typer.Exit(INTERRUPTED)
