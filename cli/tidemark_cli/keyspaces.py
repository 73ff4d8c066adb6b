"""`tidemark ks`: Strings, Sets and Maps of a keyspace by key.

Stays out: looking inside (keyspace_explaining, keyspace_repairs, keyspace_rings), clocks that were wrong
(keyspace_futures), the nodes that are asked (client).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from tidemark import Keyspace, KeyspacePages, KeyValue, KeyWritten
from tidemark_core.optimistic.sizes import VALUE_BYTES_MAX

from . import target
from .failures import FAILED
from .interrupts import until_interrupted
from .keyspace_arguments import TIMEOUT_S, HexOption, KeyArgument, KeyspaceArgument, ask, bytes_of
from .keyspace_explaining import explain
from .keyspace_futures import repair_future
from .keyspace_repairs import hints, ranges
from .keyspace_rings import ring
from .keyspace_times import shown, stamp_document, time_of
from .options import DEFAULT_DIR, ClusterOption, DirOption, JsonOption, TimeoutOption
from .output import emit, note, table
from .records import Form, Writer, finish, form_of, text_or_base64
from .sources import whole_input
from .subscriptions import seconds_of

T = TypeVar("T")
Entry = tuple[bytes, bytes | None]
"""A member, or a pair of field or key and value."""

ks_app = typer.Typer(no_args_is_help=True, help="Keyspaces: Strings, Sets and Maps by key, without a leader.")


@ks_app.callback()
def _keyspaces() -> None:
    """Keyspaces: Strings, Sets and Maps by key, without a leader."""


MemberArgument = Annotated[str, typer.Argument(metavar="MEMBER", help="The member of the Set.")]
FieldArgument = Annotated[str, typer.Argument(metavar="FIELD", help="The field of the Map.")]
ValueArgument = Annotated[str, typer.Argument(metavar="VALUE|-", help="The value; - takes standard input.")]
ROption = Annotated[int | None, typer.Option("-r", min=1, metavar="OWNERS", help="So many owners must answer a read.")]
WOption = Annotated[
    int | None, typer.Option("-w", min=1, metavar="OWNERS", help="So many owners must have stored a write.")]
TtlOption = Annotated[
    str | None,
    typer.Option("--ttl", metavar="DURATION", help="It expires after 90s, 30m, 12h, 7d; 0s: never."),
]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")]
TokenOption = Annotated[
    str | None, typer.Option("--token", metavar="TOKEN", help="Go on where another command stopped.")]
JsonlOption = Annotated[bool, typer.Option("--jsonl", help="Write one JSON object per line.")]


# --- arguments and answers


def value_of(text: str, in_hex: bool) -> bytes:
    """Return the value that an argument means; of standard input the bytes as they are."""
    return whole_input(VALUE_BYTES_MAX, "VALUE") if text == "-" else bytes_of(text, in_hex, "VALUE")


def ttl_of(text: str | None) -> int | None:
    """Return a time to live in seconds, None where none is given."""
    return None if text is None else seconds_of(text, "--ttl")


def hint_at(outcome: str) -> None:
    """Say on stderr that an answer promises less than the keyspace does."""
    if outcome == "weak":
        note("weak: fewer owners were asked than the keyspace asks for, so the answer promises nothing")
    elif outcome == "sloppy":
        note("sloppy: other nodes keep the write for owners that are away; a read may miss it for a while")


def _tell_written(name: str, written: KeyWritten, element_name: str, as_json: bool) -> None:
    stamp = written.stamp
    element = {} if written.element is None else text_or_base64(element_name, written.element)
    document = {
        "keyspace": name, **text_or_base64("key", written.key), **element, "outcome": written.outcome,
        "stored": written.stored,
        "stamp": None if stamp is None else stamp_document(stamp),
    }
    emit(as_json, document, lambda: table(
        ["KEYSPACE", "KEY", *([element_name.upper()] if element else []), "OUTCOME", "#STORED", "TIME", "NODE"],
        [[name, shown(written.key), *([shown(written.element or b"")] if element else []), written.outcome,
          written.stored, *(("-", "-") if stamp is None else (time_of(stamp.ms), stamp.node))]]))
    hint_at(written.outcome)


def _tell_values(name: str, found: list[KeyValue], in_hex: bool, as_json: bool) -> None:
    """Write the values that there are; exits with 1 where one is missing."""
    def named(value: KeyValue) -> dict[str, Any]:
        field = {} if value.element is None else text_or_base64("field", value.element)
        return {**text_or_base64("key", value.key), **field}

    missing = [value for value in found if value.value is None]
    document = {
        "keyspace": name,
        "values": [
            {**named(value), **text_or_base64("value", value.value), "outcome": value.outcome}
            for value in found if value.value is not None],
        "missing": [{**named(value), "outcome": value.outcome} for value in missing],
    }
    if as_json:
        emit(True, document, lambda: "")
    else:
        for value in found:
            if value.value is not None:
                sys.stdout.buffer.write((value.value.hex().encode() if in_hex else value.value) + b"\n")
        sys.stdout.buffer.flush()
    for outcome in sorted({value.outcome for value in found}):
        hint_at(outcome)
    for value in missing:
        field = "" if value.element is None else f"field {shown(value.element)!r} of "
        note(f"there is no {field}key {shown(value.key)!r} in keyspace {name!r}")
    if missing:
        raise typer.Exit(FAILED)


# --- Strings


@ks_app.command("get")
def get(
    name: KeyspaceArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="The keys.")],
    r: ROption = None,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show Strings by key, one value per line."""
    wanted = [bytes_of(key, in_hex, "KEY") for key in keys]
    found = ask(name, timeout_s, state, cluster, lambda ks: ks.get_many(wanted, r=r))
    _tell_values(name, [found[key] for key in wanted], in_hex, as_json)


@ks_app.command("set")
def set_(
    name: KeyspaceArgument,
    key: KeyArgument,
    value: ValueArgument,
    ttl: TtlOption = None,
    w: WOption = None,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a String."""
    wanted, ttl_s = bytes_of(key, in_hex, "KEY"), ttl_of(ttl)
    data = value_of(value, in_hex)
    written = ask(name, timeout_s, state, cluster, lambda ks: ks.set(wanted, data, ttl_s=ttl_s, w=w))
    _tell_written(name, written, "", as_json)


@ks_app.command("getdel")
def getdel(
    name: KeyspaceArgument,
    key: KeyArgument,
    r: ROption = None,
    w: WOption = None,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a String and delete it; of callers at the same time at least one gets the value."""
    wanted = bytes_of(key, in_hex, "KEY")
    taken = ask(name, timeout_s, state, cluster, lambda ks: ks.getdel(wanted, r=r, w=w))
    _tell_values(name, [taken], in_hex, as_json)


@ks_app.command("unset")
def unset(
    name: KeyspaceArgument,
    key: KeyArgument,
    w: WOption = None,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a String, whether it is there or not."""
    wanted = bytes_of(key, in_hex, "KEY")
    _tell_written(name, ask(name, timeout_s, state, cluster, lambda ks: ks.unset(wanted, w=w)), "", as_json)


# --- Sets and Maps


@ks_app.command("sadd")
def sadd(
    name: KeyspaceArgument,
    key: KeyArgument,
    member: MemberArgument,
    ttl: TtlOption = None,
    w: WOption = None,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a member to a Set."""
    wanted, element, ttl_s = bytes_of(key, in_hex, "KEY"), bytes_of(member, in_hex, "MEMBER"), ttl_of(ttl)
    written = ask(name, timeout_s, state, cluster, lambda ks: ks.sadd(wanted, element, ttl_s=ttl_s, w=w))
    _tell_written(name, written, "member", as_json)


@ks_app.command("srem")
def srem(
    name: KeyspaceArgument,
    key: KeyArgument,
    member: MemberArgument,
    w: WOption = None,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a member of a Set."""
    wanted, element = bytes_of(key, in_hex, "KEY"), bytes_of(member, in_hex, "MEMBER")
    written = ask(name, timeout_s, state, cluster, lambda ks: ks.srem(wanted, element, w=w))
    _tell_written(name, written, "member", as_json)


@ks_app.command("hset")
def hset(
    name: KeyspaceArgument,
    key: KeyArgument,
    field: FieldArgument,
    value: ValueArgument,
    ttl: TtlOption = None,
    w: WOption = None,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a field of a Map."""
    wanted, element, ttl_s = bytes_of(key, in_hex, "KEY"), bytes_of(field, in_hex, "FIELD"), ttl_of(ttl)
    data = value_of(value, in_hex)
    written = ask(name, timeout_s, state, cluster, lambda ks: ks.hset(wanted, element, data, ttl_s=ttl_s, w=w))
    _tell_written(name, written, "field", as_json)


@ks_app.command("hget")
def hget(
    name: KeyspaceArgument,
    key: KeyArgument,
    field: FieldArgument,
    r: ROption = None,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a field of a Map."""
    wanted, element = bytes_of(key, in_hex, "KEY"), bytes_of(field, in_hex, "FIELD")
    found = ask(name, timeout_s, state, cluster, lambda ks: ks.hget(wanted, element, r=r))
    _tell_values(name, [found], in_hex, as_json)


@ks_app.command("hdel")
def hdel(
    name: KeyspaceArgument,
    key: KeyArgument,
    field: FieldArgument,
    w: WOption = None,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a field of a Map."""
    wanted, element = bytes_of(key, in_hex, "KEY"), bytes_of(field, in_hex, "FIELD")
    written = ask(name, timeout_s, state, cluster, lambda ks: ks.hdel(wanted, element, w=w))
    _tell_written(name, written, "field", as_json)


@ks_app.command("clear")
def clear(
    name: KeyspaceArgument,
    key: KeyArgument,
    w: WOption = None,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove all elements of a key: a whole Set or Map."""
    wanted = bytes_of(key, in_hex, "KEY")
    _tell_written(name, ask(name, timeout_s, state, cluster, lambda ks: ks.clear(wanted, w=w)), "", as_json)


# --- pages


@ks_app.command("smembers")
def smembers(
    name: KeyspaceArgument,
    key: KeyArgument,
    limit: LimitOption = None,
    token: TokenOption = None,
    r: ROption = None,
    in_hex: HexOption = False,
    as_jsonl: JsonlOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the members of a Set, one per line."""
    wanted = bytes_of(key, in_hex, "KEY")
    _tell_pages(
        name, timeout_s, state, cluster, lambda ks: ks.smembers(wanted, token=token, r=r),
        lambda member: (member, None), ("member", ""), form_of(as_json, as_jsonl), in_hex, limit)


@ks_app.command("hgetall")
def hgetall(
    name: KeyspaceArgument,
    key: KeyArgument,
    limit: LimitOption = None,
    token: TokenOption = None,
    r: ROption = None,
    in_hex: HexOption = False,
    as_jsonl: JsonlOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the fields of a Map: field, a tab and value, one per line."""
    wanted = bytes_of(key, in_hex, "KEY")
    _tell_pages(
        name, timeout_s, state, cluster, lambda ks: ks.hgetall(wanted, token=token, r=r), lambda pair: pair,
        ("field", "value"), form_of(as_json, as_jsonl), in_hex, limit)


@ks_app.command("scan")
def scan(
    name: KeyspaceArgument,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Keys without values.")] = False,
    limit: LimitOption = None,
    token: TokenOption = None,
    r: ROption = None,
    in_hex: HexOption = False,
    as_jsonl: JsonlOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all Strings, range by range: key, a tab and value, one per line."""
    _tell_pages(
        name, timeout_s, state, cluster, lambda ks: ks.scan(token=token, r=r),
        lambda pair: (pair[0], None if keys_only else pair[1]), ("key", "value"), form_of(as_json, as_jsonl), in_hex,
        limit)


def _tell_pages(
    name: str, timeout_s: float, state: Any, cluster: str | None, begin: Callable[[Keyspace], KeyspacePages[T]],
    entry_of: Callable[[T], Entry], columns: tuple[str, str], form: Form, in_hex: bool, limit: int | None,
) -> None:
    """Write entries as they come, and at an early end the token with which to go on."""
    out, writer = sys.stdout.buffer, Writer(form=form)
    token: str | None = None

    def show(entry: bytes, value: bytes | None) -> None:
        writer.count += 1
        shown = [entry] if value is None else [entry, value]
        if form != "plain":
            writer.document({
                field: text for column, data in zip(columns, shown, strict=False)
                for field, text in text_or_base64(column, data).items()})
        else:
            out.write(b"\t".join(data.hex().encode() if in_hex else data for data in shown) + b"\n")

    async def main() -> None:
        nonlocal token
        async with await target.connect(state, cluster) as client:
            pages = begin(client.keyspace(name, timeout_s=timeout_s))
            try:
                async for entry in pages:
                    show(*entry_of(entry))
                    if writer.count == limit:
                        break
            finally:
                token = pages.token
                hint_at(pages.outcome)

    try:
        finish(until_interrupted(main()), writer, "entries")
    finally:
        if token is not None:
            note(f"go on with --token {token}")


ks_app.command()(explain)
ks_app.command()(ring)
ks_app.command()(ranges)
ks_app.command()(hints)
ks_app.command("repair-future")(repair_future)
