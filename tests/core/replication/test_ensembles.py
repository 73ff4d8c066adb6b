from __future__ import annotations

from itertools import combinations

import pytest
from tidemark_core.base.ids import EntryId, Member
from tidemark_core.base.quorum import majority
from tidemark_core.replication.ensembles import Ensembles, changed_ensemble, choose_leader, ensembles_of
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import Change, Phase, ShardRecord, Status

from tests.core.support import A, B, C, D, E

HEAD = EntryId(1, 9)
SWAP = Change(Operation.SWAP, Phase.COMMIT, C, D)


@pytest.mark.parametrize(
    ("stalled", "fencing", "final"),
    [
        (None, (A, B, C), (A, B, C)),
        (SWAP, (A, B, C, D), (A, B, D)),
        (Change(Operation.EXPAND, Phase.COMMIT, None, D), (A, B, C, D), (A, B, C, D)),
        (Change(Operation.CONTRACT, Phase.COMMIT, C, None), (A, B, C), (A, B, C)),
        (Change(Operation.SWAP, Phase.PREPARE, C, D), (A, B, C), (A, B, C)),
        (Change(Operation.EXPAND, Phase.PREPARE, None, D), (A, B, C), (A, B, C)),
    ],
    ids=["none", "swap", "expand", "contract", "swap in PREPARE", "expand in PREPARE"],
)
def test_o18_o19_o20_h6_whom_to_fence_and_from_whom_to_choose(
    stalled: Change | None, fencing: tuple[Member, ...], final: tuple[Member, ...]
) -> None:
    record = ShardRecord(5, 50, Status.RECONFIGURATION, (A, B, C), A, stalled)

    assert Ensembles(fencing, final) == ensembles_of(record)


@pytest.mark.parametrize(
    ("answered", "enough"),
    [((A, B), True), ((B, D), True), ((A, C), False), ((C, D), False), ((A, C, D), True), ((C,), False)],
)
def test_a3_a_majority_of_the_union_or_of_the_final_ensemble_is_enough(
    answered: tuple[Member, ...], enough: bool
) -> None:
    ensembles = Ensembles((A, B, C, D), (A, B, D))

    assert enough == ensembles.answered(dict.fromkeys(answered, HEAD))


@pytest.mark.parametrize("size", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("operation", [Operation.SWAP, Operation.EXPAND])
def test_a3_whoever_is_enough_meets_every_quorum_that_may_have_committed(size: int, operation: Operation) -> None:
    """For each size: no election under a stalled COMMIT can miss an entry that the old or the new ensemble committed.

    What was committed before PREPARE is in the new member's snapshot; after PREPARE the old member is not counted.
    """
    old_members = tuple(Member(f"n{index}", "") for index in range(size))
    new, leaver = Member("new", ""), old_members[-1]
    stalled = Change(operation, Phase.COMMIT, leaver if operation is Operation.SWAP else None, new)
    ensembles = ensembles_of(ShardRecord(5, 50, Status.RECONFIGURATION, old_members, old_members[0], stalled))
    counted = [member for member in old_members if member != stalled.old]
    holders = [
        *({*group, new} for group in combinations(old_members, majority(size))),          # before PREPARE
        *(set(group) for group in combinations(counted, majority(size))),                  # until Commit arrives
        *(set(group) for group in combinations(ensembles.final, majority(len(ensembles.final)))),   # after it
    ]
    for count in range(1, len(ensembles.fencing) + 1):
        for answered in combinations(ensembles.fencing, count):
            if ensembles.answered(dict.fromkeys(answered, HEAD)):
                candidates = set(answered) & set(ensembles.final)
                assert all(held & candidates for held in holders)


def test_h6_applying_a_stalled_contract_in_an_election_would_lose_a_write() -> None:
    """Five members, one leaves: {leader, x, leaver} commits; a majority of the other four can miss all three."""
    ensemble = (A, B, C, D, E)
    committed_by = {A, B, E}

    def can_miss_it(ensembles: Ensembles) -> bool:
        return any(
            ensembles.answered(dict.fromkeys(answered, HEAD))
            and not committed_by & set(answered) & set(ensembles.final)
            for answered in combinations(ensemble, 3)
        )

    stalled = Change(Operation.CONTRACT, Phase.COMMIT, E, None)
    assert can_miss_it(Ensembles(ensemble, changed_ensemble(ensemble, stalled)))
    assert not can_miss_it(ensembles_of(ShardRecord(5, 50, Status.RECONFIGURATION, ensemble, A, stalled)))


def test_k1_a_swap_keeps_the_slot_and_an_expand_adds_the_last() -> None:
    assert (D, B, C) == changed_ensemble((A, B, C), Change(Operation.SWAP, Phase.COMMIT, A, D))
    assert (A, B, C, D) == changed_ensemble((A, B, C), Change(Operation.EXPAND, Phase.COMMIT, None, D))
    assert (A, C) == changed_ensemble((A, B, C), Change(Operation.CONTRACT, Phase.COMMIT, B, None))


def test_issue_579_the_highest_epoch_leads_however_long_another_log_is() -> None:
    """Oxia #579, #598: the leader was picked by offset only, then by a wrong scan for the highest term."""
    heads = {A: EntryId(2, 9), B: EntryId(3, 1), C: EntryId(2, 4)}

    assert B == choose_leader((A, B, C), heads, None)


def test_o11_among_equal_epochs_the_highest_offset_leads_and_preference_only_breaks_ties() -> None:
    assert C == choose_leader((A, B, C), {A: EntryId(2, 4), B: EntryId(2, 4), C: EntryId(2, 5)}, A)
    assert B == choose_leader((A, B, C), {A: EntryId(2, 4), B: EntryId(2, 4), C: EntryId(2, 3)}, B)
    assert A == choose_leader((A, B, C), {A: EntryId(2, 4), B: EntryId(2, 4)}, C)


def test_o19_only_members_of_the_final_ensemble_are_candidates() -> None:
    assert A == choose_leader((A, B, D), {A: EntryId(2, 4), C: EntryId(9, 9)}, None)
    assert choose_leader((A, B, D), {C: EntryId(9, 9)}, None) is None
