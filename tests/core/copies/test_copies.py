"""Who keeps a payload and where it is surplus: the predicates, and the runs of orders in the fold."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from tidemark_core.replication.copies import Seat, copies_in_force, refuse_copies, seat_of, surplus_upto
from tidemark_core.replication.log import Log

from tests.core.support import A, Author, B, C, D, E


def order_of(*slots: int) -> int:
    """Pack a reading order."""
    return sum(slot << (4 * place) for place, slot in enumerate(slots))


def test_k1_the_slot_is_the_place_in_the_ensemble_and_a_swap_changes_only_who_sits_there() -> None:
    assert Seat(1, 3, 2) == seat_of(B, (A, B, C), 2) == seat_of(D, (A, D, C), 2)
    assert seat_of(E, (A, B, C), 2) is None


@pytest.mark.parametrize(("size", "least"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_k2_a_majority_to_all_may_keep_payloads_and_0_stands_for_all(size: int, least: int) -> None:
    allowed = [copies for copies in range(-1, size + 3) if refuse_copies(copies, size) is None]

    assert [0, *range(least, size + 1)] == allowed
    refused = refuse_copies(size + 1, size)
    assert refused is not None and "payloadCopies" in refused


def test_k2_the_first_of_the_order_are_designated_and_all_are_when_all_keep_payloads() -> None:
    order = order_of(3, 2, 1, 0, 4)

    assert [3, 2, 1] == [slot for slot in (3, 2, 1, 0, 4) if Seat(slot, 5, 3).keeps(order)]
    assert all(Seat(slot, 5, copies).keeps(order) for slot in range(5) for copies in (0, 5, 6))
    assert [5, 5, 3] == [copies_in_force(copies, 5) for copies in (0, 7, 3)]


def test_k6_the_golden_example_drops_the_right_most_first() -> None:
    order, nobody = order_of(3, 2, 1, 0, 4), [-1] * 5

    def droppable(acked: set[int]) -> set[int]:
        matches = [7 if slot in acked else -1 for slot in range(5)]
        return {slot for slot in range(5) if surplus_upto(Seat(slot, 5, 3), order, matches, 7) >= 7}

    assert set() == droppable({2, 0, 4})
    assert {4} == droppable({2, 0, 4, 3})
    assert {4, 0} == droppable({2, 0, 4, 3, 1})
    assert -1 == surplus_upto(Seat(4, 5, 3), order, nobody, 7)


def test_k6_surplus_needs_commit_and_enough_acks_strictly_left_and_is_never_true_of_the_designated() -> None:
    """Rules K6 and K7, against the words of the rule, for every order and every set of acknowledgements."""
    for size, copies in ((3, 2), (4, 3), (5, 3), (5, 4)):
        for slots in permutations(range(size)):
            order = order_of(*slots)
            for acked in product((-1, 5, 9), repeat=size):
                for place, slot in enumerate(slots):
                    left = sorted((acked[other] for other in slots[:place]), reverse=True)
                    wanted = min(left[copies - 1], 7) if place >= copies else -1
                    assert wanted == surplus_upto(Seat(slot, size, copies), order, acked, 7)
            if size == 5 and slots[0]:
                break  # the other orders are the same with other names


def test_k6_nothing_is_surplus_where_all_keep_payloads() -> None:
    for copies in (0, 3, 4):
        assert -1 == surplus_upto(Seat(2, 3, copies), order_of(0, 1, 2), (9, 9, 9), 9)


def log_of(author: Author) -> Log:
    log = Log()
    for entry in author.entries:
        log.append(entry)
    return log


def test_k1_the_fold_knows_the_order_of_every_data_entry() -> None:
    author = Author()
    author.opening()              # 0
    author.data(3, order=5)       # 1..3
    author.confirm(3)             # 4: a control entry has no order and begins no run
    author.data(2, order=5)       # 5..6
    author.data(1, order=6)       # 7
    author.opening(epoch=2)       # 8
    author.data(2, order=5)       # 9..10
    log = log_of(author)

    assert [(1, 6, 5), (7, 8, 6), (9, 10, 5)] == list(log.order_spans(0, 10))
    assert [(5, 6, 5), (7, 7, 6)] == list(log.order_spans(5, 7))
    assert [] == list(log.order_spans(0, 0))


def test_k9_control_entries_with_a_payload_are_cut_around() -> None:
    author = Author()
    author.opening()
    author.data(2)
    author.confirm(2)
    author.opening(epoch=2)
    author.opening(epoch=3)
    author.data()
    author.position("one", 3)   # its payload lies with its header
    author.data()
    log = log_of(author)

    assert [0, 4, 5] == log.solid
    assert [(1, 3), (6, 8)] == list(log.around_solid(0, 8))
    assert [(2, 3)] == list(log.around_solid(2, 5))
    assert [] == list(log.around_solid(4, 5))
    log.settle(6)
    log.trim(4)
    assert [4, 5] == log.solid
