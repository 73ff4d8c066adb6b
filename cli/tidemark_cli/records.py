"""Records and documents on stdout: as they are, as one JSON document, or as JSON lines; and what reading them has cost.

Gaps stand among the records in JSON, where they were asked for; beside plain values they are notes on stderr.
Stays out: which records (reads, tails).
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any, Literal

import tidemark
import typer
from rich.padding import Padding
from tidemark import Gap, ReadStats

from . import output
from .failures import Failure, describe
from .output import fail, note, show_beside, table

FLUSH_EVERY = 200

Form = Literal["plain", "json", "jsonl"]


def form_of(as_json: bool, as_jsonl: bool) -> Form:
    """Return the form asked for; raises BadParameter when both are."""
    if as_json and as_jsonl:
        raise typer.BadParameter("--json and --jsonl exclude each other", param_hint="--jsonl")
    return "json" if as_json else "jsonl" if as_jsonl else "plain"


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


def gap_document(gap: Gap) -> dict[str, Any]:
    return {"gap": str(gap.kind), "shard": gap.shard, "first": gap.first, "last": gap.last}


class Writer:
    """Writes records in the form asked for; `count` is how many."""

    def __init__(self, *, form: Form, keys: bool = False) -> None:
        self._form = form
        self._keys = keys
        self._out = sys.stdout.buffer
        self._documents = 0
        self.count = 0

    def write(self, record: tidemark.Record) -> None:
        self.count += 1
        if self._form != "plain":
            self.document(record_document(record))
            return
        if self._keys:
            self._out.write((record.key or b"") + b"\t")
        self._out.write(record.value + b"\n")

    def gap(self, gap: Gap) -> None:
        """Tell of offsets without a record."""
        if self._form != "plain":
            self.document(gap_document(gap))
        else:
            note(f"{gap.kind}: shard {gap.shard}, offsets {gap.first} to {gap.last}")

    def passed_over(self, reader: tidemark.Reader) -> None:
        """Tell how much of what was asked for could not be decoded."""
        if count := reader.undecodable:
            self.flush()
            note(f"passed over {count} {'record' if count == 1 else 'records'} that cannot be decoded")

    def flush(self) -> None:
        self._out.flush()

    def failed(self, failure: Failure) -> bool:
        """End a document that was begun with the failure as its last item; False where none was begun."""
        if self._form != "json" or not self._documents:
            return False
        self.document({"error": failure.reason, "message": failure.message, "advice": failure.advice})
        self.end()
        return True

    def end(self) -> None:
        if self._form == "json":
            output.writing()
        if self._form == "json":
            self._out.write(b"\n]\n" if self._documents else b"[]\n")
        self._out.flush()

    def document(self, document: dict[str, Any]) -> None:
        """Write one item of the list, or one line."""
        line = json.dumps(document, ensure_ascii=False).encode()
        if self._form == "json":
            output.writing()
            self._out.write(b",\n" if self._documents else b"[\n")  # an error before the first record stands alone
            self._out.write(line)
        else:
            self._out.write(line + b"\n")
        self._documents += 1


async def copy(reader: tidemark.Reader, writer: Writer, *, limit: int | None, live: bool) -> None:
    """Write what a reader yields, until its end or the limit; `live` output is seen at once.

    Under a name, what is not out of the house yet is not done with: it would be committed and never seen.
    """
    named = reader.subscription is not None
    while batches := await reader.next_batches(16):
        for batch in batches:
            if isinstance(batch, Gap):
                writer.gap(batch)
                continue
            for record in batch.records():
                writer.write(record)
                if limit is not None and writer.count >= limit:
                    if named:
                        writer.flush()
                        reader.mark(batch.shard, record.offset + 1)
                    return
                if writer.count % FLUSH_EVERY == 0:
                    await asyncio.sleep(0)  # a Ctrl-C is heard between records too
            if named:
                writer.flush()
                reader.mark(batch.shard, batch.last + 1)
        if live:
            writer.flush()


def finish(work: Any, writer: Writer, noun: str = "records") -> None:
    """Run a command that writes items to its end; exits with the code of a Ctrl-C or SIGTERM that ended it."""
    try:
        interrupted = tidemark.run(work)
        writer.end()
    except BrokenPipeError:
        output.discard()
        return
    except Exception as error:
        failure = describe(error)
        if failure is None or not writer.failed(failure):
            raise
        fail(failure.message, failure.advice)
        raise typer.Exit(failure.code) from None
    if interrupted:
        note(f"interrupted after {writer.count} {noun}")
        raise typer.Exit(interrupted)


# --- what it has cost


def stats_document(stats: ReadStats) -> dict[str, Any]:
    """Return the counters as plain data."""
    return {
        "bytes_received": stats.bytes_received, "bytes_delivered": stats.bytes_delivered,
        "received_over_delivered": round(stats.received_over_delivered, 4), "duplicates": stats.duplicates,
        "failovers": stats.failovers, "slow": stats.slow, "all_send_all": stats.all_send_all,
        "rewinds": dict(stats.rewinds),
        "nodes": [
            {"node": node, "bytes_received": stats.received_from[node], "share": round(share, 4)}
            for node, share in stats.shares.items()
        ],
        "known_down": {str(shard): dict(down) for shard, down in stats.known_down.items()},
    }


def show_stats(stats: ReadStats, form: Form) -> None:
    """Write the counters to stderr: one line of JSON beside JSON, else for people."""
    if form != "plain":
        print(json.dumps(stats_document(stats)), file=sys.stderr)
        return
    rewinds = ", ".join(f"{count} {reason}" for reason, count in sorted(stats.rewinds.items())) or "0"
    note(
        f"received {stats.bytes_received:,} bytes, delivered {stats.bytes_delivered:,} "
        f"({stats.received_over_delivered:.3f} for each) · duplicates {stats.duplicates} · rewinds {rewinds} · "
        f"failovers {stats.failovers} · all send all {stats.all_send_all}"
    )
    down: dict[str, list[str]] = {}
    for shard, nodes in stats.known_down.items():
        for node, why in nodes.items():
            down.setdefault(node, []).append(f"shard {shard}: {why}")
    rows = [
        [node, f"{stats.received_from[node]:,}", f"{share:.1%}", "; ".join(down.get(node, ())) or "-"]
        for node, share in stats.shares.items()
    ]
    rows += [[node, "0", "0.0%", "; ".join(why)] for node, why in sorted(down.items()) if node not in stats.shares]
    if rows:
        show_beside(Padding(table(["NODE", "#RECEIVED", "#SHARE", "PASSED OVER NOW"], rows), (0, 0, 0, 2)))
