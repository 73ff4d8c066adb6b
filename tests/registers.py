"""Histories of one String: what callers asked and heard, and whether the String was a register all the time.

A write has one or more moments between its call and its answer at which it takes effect: an owner may show an attempt
that is then repeated above what came between (D60).  One without a certain answer may also take effect later, or never.
Each value is written once, so a read names the write that it saw; None is what a delete leaves, and the beginning.
Pure.  Stays out: calls and faults (the tests), long histories (`tests/e2e/key_histories.py` has them for Porcupine).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NEVER = 1 << 62


class Act(NamedTuple):
    """One call as its caller saw it: a read of `value`, or a write of it, None for a delete; `ended` may be NEVER."""

    client: int
    reads: bool
    value: str | None
    call: int
    ended: int


def effects(history: Iterable[Act]) -> list[Act]:
    """Return reads, and a write for each moment at which one may have taken effect, in the order of their calls.

    One more moment shows only where a read within the write shows its value, and another call lies between.  A value
    that no read shows, and of which no answer is certain, explains nothing.
    """
    acts = list(history)
    shown = {act.value for act in acts if act.reads}
    found: list[Act] = []
    for act in acts:
        if not act.reads and act.ended == NEVER and act.value is not None and act.value not in shown:
            continue
        found.append(act)
        if not act.reads:
            within = [each for each in acts if each is not act and each.call < act.ended and each.ended > act.call]
            same = sum(each.reads and each.value == act.value for each in within)
            found += [act] * min(same, len(within) - same, 1 if act.ended == NEVER else same)
    return sorted(found, key=lambda act: act.call)


def is_register(history: Iterable[Act], *, once: bool = False) -> bool:
    """Say whether one order of all moments explains every read; with `once` each write has a single one.

    For histories of a few dozen calls.
    """
    acts = sorted(history, key=lambda act: act.call) if once else effects(history)
    everything = sum(1 << place for place, act in enumerate(acts) if act.ended != NEVER)
    seen: set[tuple[int, str | None]] = set()
    waiting: list[tuple[int, str | None]] = [(0, None)]
    while waiting:
        done, value = state = waiting.pop()
        if done & everything == everything:
            return True
        if state in seen:
            continue
        seen.add(state)
        left = [(place, act) for place, act in enumerate(acts) if not done >> place & 1]
        first_end = min(act.ended for _, act in left)
        for place, act in left:
            if act.call > first_end:
                break
            if not act.reads or act.value == value:
                waiting.append((done | 1 << place, act.value))
    return False
