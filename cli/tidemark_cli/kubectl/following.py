"""Following a Reconfiguration to its end; interrupted, it goes on without us.

Stays out: making one (acts), deciding (operator).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType

from ..failures import CommandFailed
from ..output import note, progress, stderr, table
from ..reconfigurations import Follower, moves, plan_hash, progress_text, stage, succeeded
from .server import Server

Object = dict[str, Any]


async def follow(server: Server, name: str, timeout_s: float | None = None) -> Object:
    """Show the progress of a Reconfiguration until it is over; return it.  Raises CommandFailed when it failed.

    A person sees one line that changes; a log file gets a line per change.
    """
    try:
        async with asyncio.timeout(timeout_s):
            item = await (_draw(server, name) if stderr.is_terminal else _tell(server, name))
    except TimeoutError:
        raise CommandFailed(
            f"{name} is not over after {timeout_s:g} s", f"It goes on: kubectl tidemark watch {name}",
            reason="TIMEOUT") from None
    except asyncio.CancelledError:
        note(f"{name} goes on by itself: kubectl tidemark watch {name}")
        raise
    return succeeded(item, f"kubectl tidemark plan {name}")


def outcome(item: Object) -> Object:
    """Return what commands show of a Reconfiguration that they made or followed."""
    done, total = moves(item)
    return {
        "reconfiguration": item["metadata"]["name"], "type": item["spec"]["type"], "stage": stage(item),
        "hash": plan_hash(item), "moves": total, "completed": done}


def draw_outcome(document: Mapping[str, Any], bytes_moved: str) -> RenderableType:
    return table(["RECONFIGURATION", "TYPE", "STAGE", "#MOVES", "#COMPLETED", "#BYTES MOVED"], [
        [document["reconfiguration"], document["type"], document["stage"], document["moves"], document["completed"],
         bytes_moved]])


async def _draw(server: Server, name: str) -> Object:
    with progress() as bar:
        follower, told = Follower(bar, name), False
        async for item in server.follow("Reconfiguration", name):
            item = _there(item, name)
            if follower.see(item):
                return item
            told = _say_approval(item, told)
    raise AssertionError("a watch never ends by itself")


async def _tell(server: Server, name: str) -> Object:
    said, told = "", False
    async for item in server.follow("Reconfiguration", name):
        item = _there(item, name)
        text = progress_text(item)
        if text != said:
            said = text
            note(f"{name}: {text}")
        if stage(item) == "Finished":
            return item
        told = _say_approval(item, told)
    raise AssertionError("a watch never ends by itself")


def _there(item: Object | None, name: str) -> Object:
    if item is None:
        raise CommandFailed(f"{name} was deleted, which cancels it", "kubectl tidemark status", reason="DELETED")
    return item


def _say_approval(item: Object, told: bool) -> bool:
    waits = stage(item) == "AwaitingApproval"
    if waits and not told:
        name = item["metadata"]["name"]
        note(f"{name} waits for somebody to approve its plan: kubectl tidemark approve {name}")
    return waits
