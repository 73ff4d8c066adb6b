"""A node forgets a keyspace that is deleted: all of it, and nothing else, whatever comes late."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_core.base.effects import ReadRows, Received
from tidemark_core.base.ids import Address
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.optimistic import deleting, plane
from tidemark_core.optimistic.coordinating.operations import put_element, set_
from tidemark_core.optimistic.coordinating.outcomes import Outcome
from tidemark_core.optimistic.deleting import ForgetAsked, Forgotten
from tidemark_core.optimistic.floors import HintsAsked
from tidemark_core.optimistic.messages import Keep, RingTold, Store, StringWrite
from tidemark_core.optimistic.moving import Announced
from tidemark_core.optimistic.owner import Source
from tidemark_core.optimistic.plane import Assign, Operate, Settle
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_core.optimistic.storing import of_string

from .owning import KEY, A, B, C, D
from .test_leaving import LEAVES, LEFT
from .test_plane import OPERATOR, Node
from .test_unit import cell

GOES, STAYS = 5, 6
PAGE = 10
RECORD = Range(1, Owners((A, B, C), Quorum(3, 2, 2)))
OTHERS = Range(1, Owners((B, C, D), Quorum(3, 2, 2)))


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (deleting, plane):
        monkeypatch.setattr(module, "PAGE", PAGE)


def hear(node: Node, unit: int, sender: Any, message: Any) -> None:
    node.step(Received(Address(7, unit), sender, node.plane.me, message))


def unit(keyspace: int, index: int = 0) -> int:
    return keyspace << 32 | index


def store(at: int) -> Store:
    return Store(at, 1, 0, 5, 1, Source.CLIENT, StringWrite(KEY, cell(500)))


def keep(at: int, number: int) -> Keep:
    return Keep(at, number, 1, of_string(b"%d" % number)[0], cell(1_500))


def filled(hints: int = 3, ranges: int = 2) -> Node:
    """Return a node with rows, hints and a promise of two keyspaces."""
    node = Node()
    node.now_ms = 1_000
    for keyspace in (GOES, STAYS):
        for index in range(ranges):
            node.step(Assign(unit(keyspace, index), RECORD))
            hear(node, unit(keyspace, index), B, store(unit(keyspace, index)))
        node.step(Assign(unit(keyspace, 100), OTHERS))
        node.step(Settle(keyspace, KeyspaceSettings(repair_every_ms=0)))
        for number in range(hints):
            hear(node, unit(keyspace, 100), B, keep(unit(keyspace, 100), number))
        hear(node, unit(keyspace, 100), OPERATOR, HintsAsked(unit(keyspace, 100), 1, 1_100))
    node.take()
    return node


def forget(node: Node, keyspace: int = GOES) -> None:
    hear(node, unit(keyspace), OPERATOR, ForgetAsked(keyspace))


def left(node: Node, keyspace: int) -> tuple[int, int, int, int]:
    """Return how many rows, records, promises and hints of a keyspace are on the disk."""
    prefix = keyspace.to_bytes(4, "big")
    tables = node.tables
    rows = sum(key.startswith(prefix) for family in ("ks_strings", "ks_keys", "ks_elements")
               for key in tables.get(family, {}))
    hints = sum(value[1:5] == prefix for value in tables.get("ks_hints", {}).values())
    promises = sum(key.startswith(prefix) for key in tables.get("ks_promises", {}))
    return rows, sum(each >> 32 == keyspace for each in node.durable), promises, hints


def test_d81_a_node_forgets_a_keyspace_and_nothing_of_another_one() -> None:
    node = filled()
    assert (2, 2, 1, 3) == left(node, GOES) == left(node, STAYS)
    forget(node)
    assert [(OPERATOR, Forgotten(GOES))] == node.take()
    assert (0, 0, 0, 0) == left(node, GOES) and (2, 2, 1, 3) == left(node, STAYS)
    assert {STAYS} == {each >> 32 for each in (*node.plane.records, *node.plane.units())}
    promises = node.plane._keeper.hints.promised_ms
    assert 3 == node.plane.summary().hints and {unit(STAYS, 100): 1_100} == promises
    forget(node)
    assert [(OPERATOR, Forgotten(GOES))] == node.take(), "it is asked again where the answer was lost"


def test_d81_the_word_is_for_the_keyspace_of_its_address() -> None:
    node = filled()
    hear(node, unit(STAYS), OPERATOR, ForgetAsked(GOES))
    assert [] == node.take() and (2, 2, 1, 3) == left(node, GOES) == left(node, STAYS)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("sender", "late"), [
    (None, Assign(unit(GOES), RECORD._replace(version=9))), (B, RingTold(unit(GOES), RECORD)),
    (OPERATOR, Announced(unit(GOES), RECORD)), (B, store(unit(GOES))), (B, keep(unit(GOES, 100), 9)),
    (OPERATOR, HintsAsked(unit(GOES), 2, 1_200)), (None, Settle(GOES, KeyspaceSettings()))], ids=str)
def test_d81_nothing_of_a_deleted_keyspace_comes_back(sender: Any, late: Any, restarts: bool) -> None:
    node = filled()
    forget(node)
    if restarts:
        node.start()
    node.take()
    if sender is None:
        node.step(late)
    else:
        hear(node, late.range, sender, late)
    assert [] == node.take() and (0, 0, 0, 0) == left(node, GOES)
    assert not {GOES} & {each >> 32 for each in (*node.plane.records, *node.plane.units())}


def test_d81_a_node_that_is_killed_at_any_write_goes_on_when_it_is_asked_again() -> None:
    writes = 0
    while True:
        node = filled(hints=PAGE + 1)
        node.slow = True
        forget(node)
        for _ in range(writes):
            if not node.queue:
                break
            node.sync()
        ended = [(OPERATOR, Forgotten(GOES))] == node.take()
        assert ended is (left(node, GOES) == (0, 0, 0, 0) and not node.queue)
        if ended:
            break
        node.slow = False
        node.start()
        assert (2 if not writes else 0) == left(node, GOES)[0], "rows go with the first write"
        forget(node)
        assert [(OPERATOR, Forgotten(GOES))] == node.take()
        assert (0, 0, 0, 0) == left(node, GOES) and (2, 2, 1) == left(node, STAYS)[:3]
        writes += 1
    assert writes > 4


def test_d81_records_and_hints_go_a_page_at_a_time() -> None:
    node = filled(hints=PAGE + 1, ranges=3 * PAGE + 1)
    node.slow = True
    forget(node)
    left_units = []
    while node.queue:
        for _ in list(node.queue):
            node.sync()
        left_units.append(left(node, GOES)[1::2])
    assert [(21, 1), (11, 0), (1, 0), (0, 0), (0, 0)] == left_units


def test_d81_a_round_and_replays_of_a_deleted_keyspace_end() -> None:
    node, at = filled(), unit(GOES, 100)
    hear(node, at, OPERATOR, HintsAsked(at, 2, 1_600))
    keeper = node.plane._keeper
    assert keeper.blocks(at) is not None and keeper.waits({at})
    forget(node)
    assert keeper.blocks(at) is None and not keeper.waits({at})


def test_d81_the_record_of_a_range_that_was_left_goes_too() -> None:
    node = Node()
    at = unit(GOES)
    for record in (LEAVES, LEFT):
        node.step(Assign(at, record))
        while node.timers:
            node.tick()
    assert [at] == list(node.durable) and not node.plane.holders
    node.start()
    forget(node)
    assert {} == node.durable


def test_d81_a_write_that_waits_for_the_disk_leaves_nothing() -> None:
    """The rows that it decides from are read when the keyspace goes."""
    node = filled()
    reads: list[Any] = []
    node.run, run = (lambda effects, now_ms: run(  # type: ignore[method-assign]
        [each for each in effects if not isinstance(each, ReadRows) or reads.append(each)], now_ms)), node.run
    hear(node, unit(GOES), B, store(unit(GOES)))
    assert 1 == len(reads)
    node.run = run  # type: ignore[method-assign]
    forget(node)
    node.run(reads, 1_000)
    assert [(OPERATOR, Forgotten(GOES))] == node.take() and (0, 0, 0, 0) == left(node, GOES)


def test_d76_d81_an_operation_that_runs_ends_and_no_other_one_begins() -> None:
    node = filled(hints=0)
    node.step(Operate(unit(GOES), 1, 500, set_(KEY, b"x")))
    forget(node)
    node.step(Operate(unit(GOES), 2, 500, set_(KEY, b"x")))
    [refused] = node.replies
    assert isinstance(refused, Refused) and Reason.UNKNOWN_SHARD is refused.reason
    node.tick(2_000)
    assert Outcome.UNKNOWN is node.replies[-1].outcome and node.plane._coordinator.idle


def test_d76_d81_an_operation_that_waits_for_rows_of_this_node_ends() -> None:
    node = filled(hints=0)
    waits: list[Any] = []
    run = node.run
    node.run = lambda effects, now_ms: run(  # type: ignore[method-assign]
        [each for each in effects if not isinstance(each, ReadRows) or waits.append(each)], now_ms)
    node.step(Operate(unit(GOES), 1, 500, put_element(b"set", b"x")))
    assert 1 == len(waits)
    forget(node)
    node.run = run  # type: ignore[method-assign]
    node.run(waits, 1_000)
    node.tick(2_000)
    assert [Outcome.UNKNOWN] == [each.outcome for each in node.replies] and node.plane._coordinator.idle
