"""`tidemark ks repair-future`: keys with stamps from the future, after clocks were wrong, and their repair (D84).

Stays out: what a repair is (core), looking at one key (keyspace_explaining).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from tidemark import FutureKey, Keyspace, ReplacedStamp
from tidemark.errors import NotRepaired, Unavailable, WriteUnknown
from tidemark.keyspace_futures import KEYS_MAX

from .failures import FAILED
from .keyspace_arguments import TIMEOUT_S, HexOption, KeyspaceArgument, ask, bytes_of
from .keyspace_times import shown, stamp_document, time_of
from .options import DEFAULT_DIR, ClusterOption, DirOption, JsonOption, TimeoutOption
from .output import emit, note, table
from .records import text_or_base64


def repair_future(
    name: KeyspaceArgument,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="The key; else --range.")] = None,
    only: Annotated[
        int | None, typer.Option("--range", min=0, metavar="INDEX", help="All keys of this range.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what has a stamp from the future; change nothing.")
                       ] = False,
    in_hex: HexOption = False,
    timeout_s: TimeoutOption = TIMEOUT_S,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make keys writable whose stamps are from the future, because the clocks of owners were ahead; values stay.

    Correct the clocks first.  Every owner must answer.  A repair that stopped half way can be repeated.
    """
    if (key is None) == (only is None):
        raise typer.BadParameter("name a KEY or a --range, one of them", param_hint="KEY")
    wanted = None if key is None else bytes_of(key, in_hex, "KEY")

    async def work(ks: Keyspace) -> list[dict[str, Any]]:
        if not dry_run and wanted is not None:
            return [await _repaired(ks, wanted)]
        found = await ks.futures(key=wanted, range=only)
        return [_found(each) if dry_run or each.elements else await _repaired(ks, each.key) for each in found]

    keys = ask(name, timeout_s, state, cluster, work)
    more = len(keys) == KEYS_MAX
    document = {"keyspace": name, "range": only, "dry_run": dry_run, "keys": keys, "more": more}
    emit(as_json, document, lambda: _drawn(document))
    if more:
        note(f"only {KEYS_MAX:,} keys of the range were looked at: repair them, then repeat the command")
    left = [each for each in keys if each["outcome"] not in ("ok", "found")]
    for why in dict.fromkeys(each["why"] for each in left if each["why"]):
        note(why)
    if left:
        raise typer.Exit(FAILED)


def _found(each: FutureKey) -> dict[str, Any]:
    elements = "a Set or Map is not repaired: wait until the time has come, or copy it to another key or keyspace"
    return _key(
        each.key, outcome="elements" if each.elements else "found", stamp=stamp_document(each.stamp),
        why=elements if each.elements else "")


async def _repaired(ks: Keyspace, key: bytes) -> dict[str, Any]:
    """Repair one key; what is left of it is part of the answer, for others behind it are repaired all the same."""
    try:
        return _key(key, outcome="ok", replaced=await ks.repair_future(key))
    except NotRepaired as error:
        return _key(
            key, outcome=error.outcome, replaced=error.replaced, missing=error.missing, why=str(error))
    except (Unavailable, WriteUnknown) as error:
        return _key(key, outcome="unknown", why=str(error))


def _key(
    key: bytes, *, outcome: str, stamp: Mapping[str, Any] | None = None, replaced: Sequence[ReplacedStamp] = (),
    missing: Sequence[str] = (), why: str = "",
) -> dict[str, Any]:
    return {
        **text_or_base64("key", key), "shown": shown(key), "outcome": outcome, "stamp": stamp, "missing": list(missing),
        "replaced": [{"was": stamp_document(each.was), "became": stamp_document(each.became)} for each in replaced],
        "why": why,
    }


def _drawn(document: Mapping[str, Any]) -> RenderableType:
    keys = document["keys"]
    if not keys:
        return f"{document['keyspace']}  no stamp is from the future"
    rows = [
        [each["shown"], each["outcome"], time_of(each["stamp"]["ms"]) if each["stamp"] else _times(each, "was"),
         _times(each, "became"), ", ".join(each["missing"]) or "-"]
        for each in keys]
    return Group(table(["KEY", "OUTCOME", "STAMP", "BECAME", "MISSING"], rows))


def _times(each: Mapping[str, Any], field: str) -> str:
    return ", ".join(time_of(pair[field]["ms"]) for pair in each["replaced"]) or "-"
