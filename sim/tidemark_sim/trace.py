"""What happened in a run: a digest of every event, a story of the last ones, and counts for the summary.

The digest is over short lines, so that two processes can compare whole runs; the story keeps the objects and
formats them only when somebody asks.
Stays out: judging.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import Any

STORY_LINES = 60
_FLUSH_LINES = 512


class Violation(Exception):
    """A promise was broken: `rule` names it."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class Trace:
    """Collects the run."""

    def __init__(self, live: bool = False) -> None:
        self.live = live
        self.step = 0
        self.now_ms = 0
        self.counts: dict[str, int] = {}
        self._story: deque[tuple[int, int, str, str, Any]] = deque(maxlen=400)
        self._hash = blake2b(digest_size=16)
        self._lines: list[str] = []

    def note(self, who: str, kind: str, what: Any = "") -> None:
        """Record that `kind` happened to `who`; `what` is any object, its class name goes into the digest."""
        self._story.append((self.step, self.now_ms, who, kind, what))
        lines = self._lines
        lines.append(f"{self.now_ms} {who} {kind} {what if what.__class__ is str else what.__class__.__name__}")
        if len(lines) >= _FLUSH_LINES:
            self._flush()
        if self.live:
            print(_line(self._story[-1], 1000), flush=True)

    def count(self, name: str, by: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    def _flush(self) -> None:
        self._hash.update("\n".join(self._lines).encode())
        self._lines.clear()

    def digest(self) -> str:
        """Return the digest of everything noted so far."""
        self._flush()
        return self._hash.copy().hexdigest()

    def story(self, lines: int = STORY_LINES) -> list[str]:
        """Return the newest events, oldest first, as text."""
        return [_line(item, 220) for item in list(self._story)[-lines:]]


def _line(item: tuple[int, int, str, str, Any], width: int) -> str:
    step, now_ms, who, kind, what = item
    text = what if isinstance(what, str) else brief(what)
    return f"{step:>6} {now_ms / 1000:>9.3f}s {who:<6} {kind:<10} {text}"[:width]


def brief(thing: Any) -> str:
    """Return a short text of a message, effect, event or entry; payloads and headers stay out."""
    name = type(thing).__name__
    if name == "Batch":
        return f"Batch({thing.producer.hex()[-6:]}/{thing.sequence} x{thing.count} {thing.durability.name})"
    if name == "Entry":
        return f"{thing.epoch}:{thing.base}..{thing.last} {thing.kind.name}"
    if hasattr(thing, "_fields"):
        if name in ("Member", "EntryId"):
            return str(thing)
        return f"{name}({', '.join(f'{field}={brief(getattr(thing, field))}' for field in thing._fields)})"
    if hasattr(thing, "__dataclass_fields__"):
        fields = ", ".join(f"{field}={brief(getattr(thing, field))}" for field in thing.__dataclass_fields__)
        return f"{name}({fields})"
    if isinstance(thing, tuple):
        return "(" + ", ".join(brief(each) for each in thing) + ")"
    if isinstance(thing, bytes):
        return f"<{len(thing)}b>"
    return str(thing)
