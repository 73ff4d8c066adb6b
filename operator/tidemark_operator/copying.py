"""Copying: which moves copy a log, and who can say beforehand how much that is.

Pure.  Stays out: asking nodes (`nodes`), how the status shows it (`status.reconfiguration`).
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark_core.base.ids import ShardId

from .plan import Move, MoveKind, World


def copies(move: Move) -> bool:
    """Say whether a new member is filled by this move."""
    return move.kind in (MoveKind.SWAP, MoveKind.EXPAND)


def whom_to_ask(moves: Iterable[Move], world: World) -> dict[str, list[ShardId]]:
    """Return which nodes hold the logs that the moves copy: leaders where they are up, else another member that is.

    A shard of which nobody is up is left out: nobody knows.
    """
    found: dict[str, list[ShardId]] = {}
    for move in moves:
        shard = world.shards.get(move.shard)
        if shard is None or not copies(move):
            continue
        members = ([shard.leader] if shard.leader else []) + list(shard.ensemble)
        knows = next((name for name in members if (node := world.nodes.get(name)) is not None and node.up), None)
        if knows is not None:
            found.setdefault(knows, []).append(move.shard)
    return found
