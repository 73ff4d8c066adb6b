"""`tidemark subscriptions`: where named readers stand, and forgetting those nobody needs; and the options to be one.

Each shard's leader is asked; a shard that nobody answers for says why.
Stays out: deciding anything; leaders do.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import tidemark
import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from tidemark import SubscriptionsView, SubscriptionView, TidemarkError
from tidemark.options import ReadOptions

from . import completing, target
from .failures import FAILED, OK, CommandFailed, describe
from .options import (
    DEFAULT_DIR,
    ClusterOption,
    DirOption,
    GroupArgument,
    JsonOption,
    ShardsOption,
    TimeoutOption,
)
from .output import emit, fail, note, table

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

SubscriptionOption = Annotated[
    str | None,
    typer.Option(
        "--subscription", metavar="NAME", autocompletion=completing.subscriptions,
        help="Go on where the subscription of this name stands, and commit what is written out.",
    ),
]
LeaseOption = Annotated[
    str | None,
    typer.Option(
        "--lease", metavar="DURATION",
        help="With --subscription: how long retention waits for it, as in 90s, 30m, 12h, 7d.  Default: 7d.",
    ),
]

subscriptions_app = typer.Typer(no_args_is_help=True, help="Named readers: where they stand, what they keep.")


@subscriptions_app.callback()
def _subscriptions() -> None:
    """Named readers: where they stand, what they keep."""


def options_of(subscription: str | None, lease: str | None) -> ReadOptions:
    """Return the client's options for a read under a name."""
    if subscription is None:
        if lease is not None:
            raise typer.BadParameter("goes with --subscription", param_hint="--lease")
        return {}
    if lease is None:
        return {"subscription": subscription}
    return {"subscription": subscription, "lease_s": seconds_of(lease)}


def seconds_of(duration: str, option: str = "--lease") -> int:
    """Return what `7d`, `12h`, `30m` or `90s` is in seconds."""
    number, unit = duration[:-1], _UNITS_S.get(duration[-1:])
    if unit is None or not (number.isascii() and number.isdecimal()):
        raise typer.BadParameter(f"{duration!r} is no duration such as 90s, 30m, 12h or 7d", param_hint=option)
    return int(number) * unit


# --- list

Look = SubscriptionsView | TidemarkError


def _document(shard: int, seen: Look) -> dict[str, Any]:
    if isinstance(seen, TidemarkError):
        return {"shard": shard, "error": seen.reason, "message": seen.message, "advice": seen.advice}
    return {
        "shard": shard, "epoch": seen.epoch, "first": seen.first, "released": seen.released,
        "subscriptions": [
            {
                "name": each.name, "offset": each.offset, "lag": each.lag, "bytes_behind": each.bytes_behind,
                "lease_ms": each.lease_ms, "committed_ms": each.committed_ms, "expires_in_ms": each.expires_in_ms,
            }
            for each in seen.subscriptions
        ],
    }


def _row(shard: int, each: SubscriptionView) -> list[object]:
    return [
        each.name, shard, each.offset, f"{each.lag:,}", f"{each.bytes_behind:,}", span(each.lease_ms),
        span(each.expires_in_ms) if each.expires_in_ms >= 0 else "expired",
    ]


def span(milliseconds: int) -> str:
    """Return a span as people read it, in its largest unit."""
    for unit, seconds in reversed(_UNITS_S.items()):
        if milliseconds >= seconds * 1000:
            return f"{milliseconds / 1000 / seconds:.3g}{unit}"
    return f"{milliseconds / 1000:.1f}s"


def _render(group: str, shards: list[int], seen: list[Look]) -> RenderableType:
    rows = sorted(
        (_row(shard, each) for shard, view in zip(shards, seen, strict=True)
         if isinstance(view, SubscriptionsView) for each in view.subscriptions),
        key=lambda row: (row[0], row[1]),
    )
    if not rows:
        return Text(f"nobody reads {group} under a name", style="dim")
    columns = ["SUBSCRIPTION", "#SHARD", "#OFFSET", "#LAG", "#BYTES BEHIND", "#LEASE", "#LEFT"]
    return Group(Padding(table(columns, rows), 0))


@subscriptions_app.command("list")
def list_(
    group: GroupArgument,
    shards: ShardsOption = None,
    timeout_s: TimeoutOption = 10.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the subscriptions of GROUP: where each stands on each shard, how far behind, how long it is waited for."""
    async def main() -> tuple[list[int], list[Look]]:
        async with await target.connect(state, cluster) as client:
            found = await client.group(group)
            wanted = sorted(found.shards) if shards is None else [client.routing.check_shard(found, s) for s in shards]

            async def one(shard: int) -> Look:
                try:
                    return (await client.subscriptions(group, shards=[shard], timeout_s=timeout_s))[shard]
                except TidemarkError as error:
                    return error

            return wanted, list(await asyncio.gather(*map(one, wanted)))

    wanted, seen = tidemark.run(main())
    document = {
        "group": group, "shards": [_document(shard, view) for shard, view in zip(wanted, seen, strict=True)]
    }
    emit(as_json, document, lambda: _render(group, wanted, seen))
    code = OK
    for shard, view in zip(wanted, seen, strict=True):
        if isinstance(view, TidemarkError):
            failure = describe(view)
            code = code or (failure.code if failure is not None else FAILED)
            fail(f"shard {shard} of {group}: {view.message}", view.advice)
    if code != OK:
        raise typer.Exit(code)


# --- delete


@subscriptions_app.command()
def delete(
    group: GroupArgument,
    name: Annotated[str, typer.Argument(
        metavar="NAME", autocompletion=completing.subscriptions, help="Name of the subscription.")],
    shards: ShardsOption = None,
    timeout_s: TimeoutOption = 10.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a subscription: retention no longer waits for it, and whoever reads under its name begins anew."""
    async def main() -> list[int]:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            return await client.delete_subscription(group, name, shards=shards, timeout_s=timeout_s)

    deleted = tidemark.run(main())
    if not deleted:
        raise CommandFailed(
            f"no shard of {group} has a subscription {name}", f"See `tidemark subscriptions list {group}`.",
            reason="NOT_FOUND",
        )
    document = {"group": group, "subscription": name, "shards": deleted}
    emit(as_json, document, lambda: Text(f"subscription {name} deleted"))
    if not as_json:
        note(f"on shards {', '.join(map(str, deleted))} of {group}")
