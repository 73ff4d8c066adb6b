"""`tidemark put`: one document, or one for each line of a file or of standard input.

Stays out: reading lines (sources), the summary of every end (bulk), batching and retries (client).
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from enum import StrEnum
from typing import Annotated, Any

import tidemark
import typer
from tidemark import Delete, Documents, Put, Written
from tidemark.errors import ConditionFailed
from tidemark_core.documents.payload import VALUE_BYTES_MAX

from . import target
from .bulk import Job, drive, finish, key_of
from .documents import Base64Option, ExpectedOption, bytes_of, written_document, written_table
from .failures import FAILED, CommandFailed
from .options import DEFAULT_DIR, ClusterOption, DirOption, GroupArgument, JsonOption, TimeoutOption
from .output import emit, fail, note, table
from .records import text_or_base64
from .sources import Source, whole_input
from .subscriptions import seconds_of

_FIELDS = frozenset({"key", "key_base64", "value", "value_base64", "expected", "ttl_s", "delete"})
_ADVICE = 'A line is {"key": ..., "value": ...}, or any JSON with --key-field; lines before it are written.'

_CONDITIONS = "the condition of some lines did not hold"
_READ_AGAIN = "The other lines are written; read the documents of these again."


class PutLevel(StrEnum):
    """Values of --durability."""

    QUORUM = "quorum"
    COMMIT = "commit"


def write_of(line: bytes, key_field: str | None, ttl_s: float | None) -> Put | Delete:
    """Return the write that a line stands for; raises CommandFailed with the reason why it stands for none."""
    if key_field is not None:
        key = key_of(line, key_field)
        if key is None:
            raise _bad(f"the field {key_field!r} is null, and a document needs a key")
        return Put(key, line, None, ttl_s)
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise _bad("it is not JSON") from None
    if not isinstance(fields, dict):
        raise _bad("it is no JSON object")
    if unknown := sorted(fields.keys() - _FIELDS):
        raise _bad(f"the field {unknown[0]!r} is unknown")
    expected = fields.get("expected")
    if expected is not None and (type(expected) is not int or expected < 0):
        raise _bad(f"expected is {expected!r}, must be a seqno from 0 on")
    if fields.get("key", "") is None:
        raise _bad("key is null, and a document needs a key")
    key = _bytes(fields, "key")
    if key is None:
        raise _bad("it has no key")
    if fields.get("delete", False) is True:
        return Delete(key, expected)
    value = _bytes(fields, "value")
    if value is None:
        raise _bad("it has no value")
    return Put(key, value, expected, fields.get("ttl_s", ttl_s))


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    """Return a field: text as UTF-8, base64 under its own name, any other JSON as it is written."""
    try:
        if f"{name}_base64" in fields:
            return base64.b64decode(fields[f"{name}_base64"], validate=True)
        if name not in fields:
            return None
        value = fields[name]
        return (value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))).encode()
    except (ValueError, TypeError):
        raise _bad(f"{name}_base64 is not base64, or {name} has no UTF-8") from None


def _bad(what: str) -> CommandFailed:
    return CommandFailed(what, _ADVICE, reason="BAD_LINE")


class _Puts(Job):
    """One run of the command with lines."""

    def __init__(self, source: Source, skip: int, key_field: str | None, ttl_s: float | None) -> None:
        super().__init__(source, skip)
        self.key_field = key_field
        self.ttl_s = ttl_s
        self.documents: Documents | None = None

    async def write(self, line: bytes) -> asyncio.Future[Written]:
        assert self.documents is not None
        write = write_of(line, self.key_field, self.ttl_s)
        await self.documents.wait_for_room(len(line) + 1024)
        return self.documents.put_nowait(write)

    def goes_on_after(self, error: BaseException) -> bool:
        return isinstance(error, ConditionFailed)


def put(
    group: GroupArgument,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="The document's key.")] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE|-", help="The document's value; - takes standard input.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE|-", help="One document per JSON line, .gz or not; - is stdin."),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option("--key-field", help="With --file: each line is a value, and this field of it is the key."),
    ] = None,
    expected: ExpectedOption = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="DURATION", help="It expires after 90s, 30m, 12h, 7d.")
    ] = None,
    durability: Annotated[
        PutLevel | None, typer.Option("--durability", help="How safe a write is when it is answered.")
    ] = None,
    skip: Annotated[int, typer.Option("--skip", min=0, metavar="LINES", help="Go on behind so many lines.")] = 0,
    in_base64: Base64Option = False,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put one document, or with --file one for each line."""
    ttl_s = None if ttl is None else seconds_of(ttl, "--ttl")
    if file is None:
        if key is None or value is None:
            raise typer.BadParameter("are needed, or --file", param_hint="KEY and VALUE")
        if key_field is not None or skip:
            raise typer.BadParameter("goes with --file", param_hint="--skip" if key_field is None else "--key-field")
        data = whole_input(VALUE_BYTES_MAX, "VALUE") if value == "-" else bytes_of(value, in_base64, "VALUE")
        _put_one(
            group, Put(bytes_of(key, in_base64, "KEY"), data, expected, ttl_s), durability, timeout_s, state, cluster,
            as_json)
        return
    if key is not None or expected is not None or in_base64:
        raise typer.BadParameter("excludes KEY, VALUE, --expected and --base64", param_hint="--file")
    _put_lines(group, _Puts(Source(file), skip, key_field, ttl_s), durability, timeout_s, state, cluster, as_json)


def _put_one(
    group: str, one: Put, durability: str | None, timeout_s: float, state: Any, cluster: str | None, as_json: bool
) -> None:
    async def main() -> Written:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            async with client.documents(group, timeout_s=timeout_s, durability=durability) as documents:
                return await documents.put(one.key, one.value, ttl_s=one.ttl_s, expected=one.expected)

    written = tidemark.run(main())
    emit(as_json, written_document(group, written), lambda: written_table(group, written))


def _put_lines(
    group: str, job: _Puts, durability: str | None, timeout_s: float, state: Any, cluster: str | None, as_json: bool
) -> None:
    async def main() -> None:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            documents = job.documents = client.documents(group, timeout_s=timeout_s, durability=durability)
            await drive(job, documents, f"put into {group}")

    started = time.monotonic()
    try:
        tidemark.run(main())
    finally:
        job.source.close()
    seconds = time.monotonic() - started
    refused = job.tally.conditions
    document = {
        "group": group, "acked": job.acked, "bytes": job.bytes, "seconds": round(seconds, 3),
        "outcomes": job.tally.counts,
        "conditions_failed": [
            {"line": line, **text_or_base64("key", error.key), "expected": error.expected, "found": error.found}
            for line, error in refused
        ],
        **job.document(),
    }
    if refused and "error" not in document:
        document |= {"error": "CONDITION_FAILED", "message": _CONDITIONS, "advice": _READ_AGAIN}
    emit(as_json, document, lambda: table(
        ["group", "#documents", "#MB", "#seconds", "#documents/s", "outcomes"],
        [[group, job.acked, f"{job.bytes / 1e6:.1f}", f"{seconds:.1f}", f"{job.acked / seconds:,.0f}",
          job.tally.sentence()]],
    ))
    for line, error in refused:
        note(f"line {line}: {error.message}")
    finish(job, group, "written")
    if refused:
        fail(_CONDITIONS, _READ_AGAIN)
        raise typer.Exit(FAILED)
