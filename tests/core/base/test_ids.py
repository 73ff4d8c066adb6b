from __future__ import annotations

import pytest
from tidemark_core.base.ids import NOTHING, EntryId, Member, group_of, index_of, shard_id


def test_o5_entry_ids_compare_by_epoch_then_offset() -> None:
    assert [NOTHING, EntryId(1, 0), EntryId(1, 9), EntryId(2, 9), EntryId(3, 1)] == sorted(
        [EntryId(3, 1), EntryId(2, 9), EntryId(1, 9), NOTHING, EntryId(1, 0)]
    )


def test_o5_nothing_is_below_every_entry() -> None:
    assert EntryId(1, 0) > NOTHING
    assert "0:-1" == str(NOTHING)


def test_k14_another_life_of_a_disk_is_another_member() -> None:
    assert Member("n1", "disk-one") != Member("n1", "disk-two")
    assert "n1/0123abcd" == str(Member("n1", "0123abcdef"))


@pytest.mark.parametrize(("group", "index"), [(0, 0), (7, 3), ((1 << 32) - 1, (1 << 32) - 1)])
def test_shard_id_gives_back_group_and_index(group: int, index: int) -> None:
    shard = shard_id(group, index)

    assert (group, index) == (group_of(shard), index_of(shard))


@pytest.mark.parametrize(("group", "index"), [(-1, 0), (0, -1), (1 << 32, 0), (0, 1 << 32)])
def test_shard_id_refuses_numbers_that_do_not_fit(group: int, index: int) -> None:
    with pytest.raises(ValueError, match="unsigned 32-bit"):
        shard_id(group, index)
