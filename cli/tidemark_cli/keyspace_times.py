"""Times, stamps and bytes of keyspaces, as people and programs read them."""

from __future__ import annotations

import datetime
from typing import Any

from tidemark import Stamp

from .subscriptions import span


def time_of(ms: int) -> str:
    """Return a time in milliseconds as people read it; one that no calendar has stays a number."""
    try:
        return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def time_or_dash(ms: int) -> str:
    """Return a time, a dash for 0."""
    return time_of(ms) if ms else "-"


def ago(milliseconds: int | None) -> str:
    """Return how long ago something was, a dash for None."""
    return "-" if milliseconds is None else f"{span(milliseconds)} ago"


def stamp_document(stamp: Stamp) -> dict[str, Any]:
    """Return a stamp as plain data."""
    return {"ms": stamp.ms, "logical": stamp.logical, "node": stamp.node, "start": stamp.start.hex()}


def shown(data: bytes) -> str:
    """Return bytes as text."""
    return data.decode(errors="backslashreplace")
