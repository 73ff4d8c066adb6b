"""A trace: a story with its name, and the cluster that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemark_core.optimistic.coordinating.reading import Repair
from tidemark_core.optimistic.ring import Quorum

from ..options import QUORUMS
from ..story import Story


@dataclass(frozen=True, slots=True)
class Trace:
    """`play` tells the story; the others are what it begins with."""

    name: str
    play: Callable[[Story], None]
    nodes: int = 5
    quorum: Quorum = QUORUMS[0]
    repair: Repair = Repair.BLOCKING
    sloppy: bool = False
    replay_pause_ms: int = 200
