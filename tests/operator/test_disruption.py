"""One disruptive act at a time per cluster: the decisions, and the key in a real etcd."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import shard_id
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.disruption import Act, Disruption, Hold, ended, taken
from tidemark_operator.etcd import EtcdStore
from tidemark_operator.metadata import Keys, StoredObject
from tidemark_operator.mirror import Mirror
from tidemark_operator.moves import MoveState
from tidemark_operator.plan import Move, MoveKind
from tidemark_operator.reconfiguration_run import ReconfigurationRun, _only_leaders
from tidemark_operator.reconfigure import Reconfigurer
from tidemark_operator.resources.conditions import ConditionReason

KEYS = Keys("/t")
NOW = "2026-01-01T00:00:00Z"

steps = st.lists(st.tuples(
    st.sampled_from(["take", "end"]), st.sampled_from(Act), st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 3),
    st.sampled_from(["op1", "op2"])))


@given(steps)
def test_whatever_is_asked_for_one_act_holds_the_key(asked) -> None:
    hold: Hold | None = None
    for verb, act, subject, at_most, operator in asked:
        if verb == "end":
            left = ended(hold, act, subject)
            assert left is None or not left.has(act, subject)
            assert (left == hold) == (hold is None or not hold.has(act, subject)), "others are left alone"
            hold = left
            continue
        got = taken(hold, act, subject, operator, NOW, at_most)
        if got is None:
            assert hold is not None and not hold.has(act, subject)
            assert hold.act is not act or len(hold.subjects) >= at_most
            continue
        assert got.has(act, subject) and got.operator == operator
        assert hold is None or hold.act is got.act
        assert len(got.subjects) <= max(at_most, len(hold.subjects) if hold else 0)
        assert taken(got, act, subject, operator, "later", at_most) == got, "since when does not move"
        assert Hold.decode(got.encode()) == got
        hold = got


def room(store: EtcdStore, operator: str) -> Disruption:
    mirror = Mirror(KEYS)
    return Disruption(store, KEYS.disruption, operator, lambda: mirror.disruption, mirror.learn)


async def test_a_successor_goes_on_with_the_act_and_nothing_else_begins(store: EtcdStore) -> None:
    one, two = room(store, "op1"), room(store, "op2")
    assert await one.take(Act.RESTART, "n1")
    assert await one.take(Act.RESTART, "n1"), "asked for again in each pass"
    assert not await one.take(Act.RESTART, "n2")
    assert await one.take(Act.RESTART, "n2", at_most=2)
    assert not await one.take(Act.RECONFIGURATION, "swap")
    assert "Restart of n1, n2" in one.in_the_way(Act.RECONFIGURATION, "swap")
    assert one.in_the_way(Act.RESTART, "n1") == ""

    assert not await two.take(Act.REMOVAL, "n1"), "another act on the same node waits too"
    assert await two.take(Act.RESTART, "n1")
    assert two.hold is not None and two.hold.operator == "op2" and set(two.hold.subjects) == {"n1", "n2"}
    await two.end(Act.RESTART, "n1")
    await two.end(Act.RESTART, "n2")
    assert two.hold is None and await store.get(KEYS.disruption) is None
    await one.end(Act.RESTART, "n1")  # it had not heard
    assert await one.take(Act.RECONFIGURATION, "swap")


async def test_of_two_that_ask_at_once_one_is_told_yes(store: EtcdStore) -> None:
    rooms = [room(store, f"op{number}") for number in range(8)]
    told = await asyncio.gather(*(each.take(Act.RESTART, f"n{number}") for number, each in enumerate(rooms)))
    assert sum(told) == 1


async def test_what_cannot_be_read_is_left_alone_and_nothing_begins(
    store: EtcdStore, caplog: pytest.LogCaptureFixture
) -> None:
    for text in (b"?", b'{"format":1,"act":"Party","subjects":{"n1":"x"},"operator":"o"}',
                 b'{"format":1,"act":"Restart","subjects":{},"operator":"o"}', b'{"format":2}'):
        with pytest.raises(RemoteViolation):
            Hold.decode(text)
    await store.put(KEYS.disruption, b'{"format":2}', expected=0)
    with caplog.at_level(logging.ERROR):
        assert not await room(store, "op1").take(Act.RESTART, "n1")
    assert "left as it is" in caplog.text
    item = await store.get(KEYS.disruption)
    assert item is not None and item.value == b'{"format":2}'


def waiting(kind: MoveKind) -> list[MoveState]:
    return [MoveState(Move(shard_id(1, 0), kind, "n1", "n4"))]


async def test_moves_wait_for_a_restart_and_leaderships_do_not(store: EtcdStore) -> None:
    turn = room(store, "op1")
    stored = StoredObject({"metadata": {"name": "swap"}, "spec": {"type": "NodeSwap"}}, "uid", NOW)
    run = ReconfigurationRun(stored, *[None] * 5, ConditionMemory(), turn, *[None] * 3)  # type: ignore[arg-type]
    await turn.take(Act.RESTART, "n1")
    assert _only_leaders(waiting(MoveKind.TRANSFER))
    assert not _only_leaders([*waiting(MoveKind.TRANSFER), *waiting(MoveKind.SWAP)])
    assert not await run._has_turn()
    assert run._blocked is not None
    assert run._blocked[0] is ConditionReason.DISRUPTION_UNDER_WAY and "Restart of n1" in run._blocked[1]
    await run._end_turn()
    assert turn.hold is not None and turn.hold.has(Act.RESTART, "n1"), "it ends its own turn only"
    await turn.end(Act.RESTART, "n1")
    assert await run._has_turn()
    assert not await turn.take(Act.RESTART, "n2")


async def test_the_turn_of_a_reconfiguration_that_does_not_run_is_over(store: EtcdStore) -> None:
    turn = room(store, "op1")
    await turn.take(Act.RECONFIGURATION, "swap")
    reconfigurer = Reconfigurer(*[None] * 6, turn, None, lambda seconds: None, None)  # type: ignore[arg-type]
    await reconfigurer.end_stale_turn()
    assert turn.hold is None
    await turn.take(Act.RESTART, "n1")
    await reconfigurer.end_stale_turn()
    assert turn.hold is not None
