"""Who is asked how much the moves of a plan will copy."""

from __future__ import annotations

from dataclasses import replace

from operator_views import node, nodes, shard, world
from tidemark_operator.copying import whom_to_ask
from tidemark_operator.plan import Move, MoveKind


def test_the_leader_is_asked_else_a_member_that_is_up_and_of_the_rest_nobody() -> None:
    led, orphan, alone = shard(0, "n1", "n2", "n3", leader="n2"), shard(1, "n4", "n1", "n2", leader=""), shard(2, "n4")
    idle = shard(3, "n1", "n2", "n3", leader="n3")
    known = {**nodes(5), "n4": node("n4", up=False)}
    moves = [
        Move(led.shard, MoveKind.SWAP, "n1", "n5"), Move(orphan.shard, MoveKind.EXPAND, to_node="n5"),
        Move(alone.shard, MoveKind.SWAP, "n4", "n5"), Move(idle.shard, MoveKind.CONTRACT, "n1"),
        Move(idle.shard, MoveKind.TRANSFER, "n3", "n1")]
    now = world(led, orphan, alone, idle, nodes=known)
    assert whom_to_ask(moves, now) == {"n2": [led.shard], "n1": [orphan.shard]}
    known["n2"] = replace(known["n2"], up=False)
    assert whom_to_ask(moves[:1], now) == {"n1": [led.shard]}, "a leader that is down says nothing"
    assert whom_to_ask([Move(shard(9, "n1").shard, MoveKind.SWAP, "n1", "n5")], now) == {}, "deleted meanwhile"
