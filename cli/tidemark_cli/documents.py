"""`tidemark get`, `delete` and `scan` of documents, and `tidemark pin`; `get` and `delete` of objects too.

A word that names a kind means objects, any other one a group; `documents/NAME` always means the group NAME.
Stays out: `put` (document_puts), objects (views), following leaders (client).
"""

from __future__ import annotations

import base64
import os
import sys
from enum import StrEnum
from typing import Annotated, Any

import tidemark
import typer
from tidemark import Document, Documents, Written
from tidemark_operator.resources import kinds

from . import target, views
from .failures import FAILED, CommandFailed
from .interrupts import until_interrupted
from .options import DEFAULT_DIR, ClusterOption, DirOption, GroupArgument, JsonOption, ShardsOption, TimeoutOption
from .output import emit, note, table
from .records import Writer, finish, form_of, text_or_base64
from .subscriptions import seconds_of

GROUP_PREFIX = "documents/"


class ReadLevel(StrEnum):
    """Values of --level."""

    LINEARIZABLE = "linearizable"
    LEADER = "leader"
    FOLLOWER = "follower"


LevelOption = Annotated[
    ReadLevel | None,
    typer.Option(
        "--level", help="linearizable (default): all that was answered before; leader; follower: any member."),
]
AtOption = Annotated[str | None, typer.Option("--at", metavar="PIN", help="As the pin of this name shows it.")]
ExpectedOption = Annotated[
    int | None,
    typer.Option("--expected", min=0, metavar="SEQNO", help="Only over this version; 0: only where no document is."),
]
Base64Option = Annotated[bool, typer.Option("--base64", help="Keys and values on the command line are base64.")]


def bytes_of(text: str, in_base64: bool, hint: str) -> bytes:
    """Return the bytes that an argument means."""
    if not in_base64:
        return os.fsencode(text)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not base64", param_hint=hint) from None


def group_of(word: str) -> str:
    """Return the name of the group that a word means."""
    return word.removeprefix(GROUP_PREFIX)


def document_of(document: Document, keys_only: bool = False) -> dict[str, Any]:
    """Return a document as plain data."""
    value = {} if keys_only else text_or_base64("value", document.value)
    expires = document.expires_at
    return {
        **text_or_base64("key", document.key), **value, "seqno": document.seqno, "shard": document.shard,
        "expires_at": expires.isoformat() if expires is not None else None,
    }


def written_document(group: str, written: Written) -> dict[str, Any]:
    """Return the answer to a write as plain data."""
    return {
        "group": group, **text_or_base64("key", written.key), "shard": written.shard, "seqno": written.seqno,
        "epoch": written.epoch, "existed": written.existed, "replaced": written.replaced or None,
        "durability": written.durability.name, "producer": written.producer.hex(), "sequence": written.sequence,
    }


def written_table(group: str, written: Written) -> Any:
    """Return the answer to a write for people."""
    return table(
        ["GROUP", "#SHARD", "#SEQNO", "#REPLACED", "DURABILITY"],
        [[group, written.shard, written.seqno, written.replaced or "-", written.durability.name]],
    )


def get(
    subject: Annotated[
        str, typer.Argument(metavar="GROUP|KIND", help="A group of documents; or cluster, loggroup, keyspace, "
                            "reconfiguration or shard.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...|NAME", help="Keys of documents; or one object's name.")
    ] = None,
    level: LevelOption = None,
    min_seqno: Annotated[
        int, typer.Option("--min-seqno", min=0, metavar="SEQNO", help="Wait until the shard shows this write.")
    ] = 0,
    at: AtOption = None,
    in_base64: Base64Option = False,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show documents by key, or objects with their status."""
    words = names or []
    if kinds.kind_of(subject):
        _objects_only(subject, [(level, "--level"), (min_seqno or None, "--min-seqno"), (at, "--at"),
                                (in_base64 or None, "--base64")])
        if len(words) > 1:
            raise typer.BadParameter("is one object's name, or none for all", param_hint="NAME")
        views.get(subject, words[0] if words else "", state, cluster, as_json)
        return
    if not words:
        known = ", ".join(kinds.KINDS)
        raise CommandFailed(
            f"there is no kind {subject!r}", f"The kinds are {known}; of a group of documents give a KEY too.", code=2,
            reason="USAGE")
    if at is not None and (level is not None or min_seqno):
        raise typer.BadParameter("excludes --level and --min-seqno", param_hint="--at")
    keys, group = [bytes_of(word, in_base64, "KEY") for word in words], group_of(subject)

    async def main() -> dict[bytes, Document]:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            async with client.documents(group, timeout_s=timeout_s) as documents:
                if at is not None:
                    return await (await documents.pinned(at)).get_many(keys)
                return await documents.get_many(keys, level=level, min_seqno=min_seqno)

    found = tidemark.run(main())
    missing = [key for key in dict.fromkeys(keys) if key not in found]
    shown = [document_of(found[key]) for key in keys if key in found]
    document: Any = {"group": group, "documents": shown, "missing": [text_or_base64("key", key) for key in missing]}
    if as_json:
        emit(True, document, lambda: "")
    else:
        for key in keys:
            if key in found:
                sys.stdout.buffer.write(found[key].value + b"\n")
        sys.stdout.buffer.flush()
    for key in missing:
        note(f"there is no document {key.decode(errors='backslashreplace')!r}")
    if missing:
        raise typer.Exit(FAILED)


def delete(
    subject: Annotated[str, typer.Argument(metavar="GROUP|KIND", help="A group of documents, or a kind of objects.")],
    name: Annotated[str, typer.Argument(metavar="KEY|NAME", help="A document's key, or an object's name.")],
    expected: ExpectedOption = None,
    in_base64: Base64Option = False,
    timeout_s: Annotated[float | None, typer.Option("--timeout", min=0.1, metavar="SECONDS")] = None,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a document, or an object as its own policy says."""
    if kinds.kind_of(subject):
        _objects_only(subject, [(expected, "--expected"), (in_base64 or None, "--base64"), (timeout_s, "--timeout")])
        views.delete(subject, name, state, cluster, as_json)
        return
    key, group = bytes_of(name, in_base64, "KEY"), group_of(subject)

    async def main() -> Written:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            async with client.documents(group, timeout_s=timeout_s or 30.0) as documents:
                return await documents.delete(key, expected=expected)

    written = tidemark.run(main())
    emit(as_json, written_document(group, written), lambda: written_table(group, written))
    if not written.existed:
        note("there was no such document")


def _objects_only(kind: str, given: list[tuple[object, str]]) -> None:
    for value, option in given:
        if value is not None:
            raise typer.BadParameter(
                f"is for documents, and {kind!r} is a kind of objects; write {GROUP_PREFIX}{kind} for a group of that "
                "name", param_hint=option)


def scan(
    group: GroupArgument,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Keys that begin so.")] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="KEY", help="First key wanted.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="KEY", help="First key not wanted.")] = None,
    shards: ShardsOption = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many documents.")] = None,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Keys without values.")] = False,
    ordered: Annotated[bool, typer.Option("--ordered", help="By key over all shards.")] = False,
    level: LevelOption = None,
    at: AtOption = None,
    in_base64: Base64Option = False,
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="Write one JSON object per line.")] = False,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the documents of GROUP to stdout: key, a tab and value, one per line."""
    form = form_of(as_json, as_jsonl)
    if prefix is not None and (first is not None or until is not None):
        raise typer.BadParameter("excludes --from and --until", param_hint="--prefix")
    if at is not None and level is not None:
        raise typer.BadParameter("excludes --level", param_hint="--at")
    bounds = {
        name: bytes_of(text, in_base64, f"--{name}")
        for name, text in (("prefix", prefix), ("first", first), ("until", until)) if text is not None
    }
    out, writer = sys.stdout.buffer, Writer(form=form)

    def show(document: Document) -> None:
        writer.count += 1
        if form != "plain":
            writer.document(document_of(document, keys_only))
        else:
            out.write((document.key if keys_only else document.key + b"\t" + document.value) + b"\n")

    async def main() -> None:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            async with client.documents(group, timeout_s=timeout_s) as documents:
                options: Any = {"shards": shards, "limit": limit, "keys_only": keys_only, "ordered": ordered, **bounds}
                found = (
                    documents.scan(level=level, **options) if at is None
                    else (await documents.pinned(at)).scan(**options)
                )
                async for page in found.pages():
                    for document in page:
                        show(document)

    finish(until_interrupted(main()), writer, "documents")


# --- pins

pin_app = typer.Typer(no_args_is_help=True, help="Named states of documents, which every member keeps for a while.")


@pin_app.callback()
def _pins() -> None:
    """Named states of documents, which every member keeps for a while."""


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pin.")]


def _on_documents(group: str, timeout_s: float, state: Any, cluster: str | None, work: Any) -> Any:
    async def main() -> Any:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            async with client.documents(group, timeout_s=timeout_s) as documents:
                return await work(documents)

    return tidemark.run(main())


@pin_app.command("create")
def create(
    group: GroupArgument,
    name: NameArgument,
    ttl: Annotated[str, typer.Option("--ttl", metavar="DURATION", help="How long it lasts: 90s, 30m, 12h, 7d.")] = "1h",
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep the documents of GROUP as they are now; a pin of that name keeps its state, and its lease is renewed."""
    ttl_s = seconds_of(ttl, "--ttl")

    async def work(documents: Documents) -> Any:
        return await documents.pin(name, ttl_s)

    pin = _on_documents(group, timeout_s, state, cluster, work)
    shards = [
        {"shard": shard, "seqno": cut.seqno, "epoch": cut.epoch, "documents": cut.count, "digest": cut.digest.hex()}
        for shard, cut in pin.cuts.items()
    ]
    emit(as_json, {"group": group, "pin": name, "ttl_s": ttl_s, "shards": shards}, lambda: table(
        ["PIN", "#SHARD", "#SEQNO", "#DOCUMENTS", "DIGEST"],
        [[name, each["shard"], each["seqno"], each["documents"], each["digest"]] for each in shards],
    ))


@pin_app.command("list")
def list_pins(
    group: GroupArgument,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the active pins of GROUP by shard."""

    async def work(documents: Documents) -> Any:
        return await documents.describe()

    described = _on_documents(group, timeout_s, state, cluster, work)
    pins = sorted(
        ({"pin": pin.name, "shard": shard, "seqno": pin.seqno, "expires_in_ms": pin.expires_in_ms,
          "kept_bytes": pin.kept_bytes, "behind": each.applied - pin.seqno, "owner": pin.owner}
         for shard, each in described.items() for pin in each.pins),
        key=lambda one: (one["pin"], one["shard"]),
    )
    emit(as_json, {"group": group, "pins": pins}, lambda: table(
        ["PIN", "#SHARD", "#SEQNO", "#BEHIND", "#SECONDS LEFT", "#BYTES KEPT", "OWNER"],
        [[one["pin"], one["shard"], one["seqno"], one["behind"], f"{one['expires_in_ms'] / 1000:.0f}",
          f"{one['kept_bytes']:,}", one["owner"] or "-"] for one in pins],
    ))


@pin_app.command("release")
def release(
    group: GroupArgument,
    name: NameArgument,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a pin."""

    async def work(documents: Documents) -> Any:
        return await documents.unpin(name)

    shards = _on_documents(group, timeout_s, state, cluster, work)
    if not shards:
        raise CommandFailed(
            f"no pin {name!r} is active in {group!r}", f"`tidemark pin list {group}` shows those that are.",
            reason="NOT_PINNED")
    emit(as_json, {"group": group, "pin": name, "shards": shards}, lambda: f"{name} released on {len(shards)} shards")
