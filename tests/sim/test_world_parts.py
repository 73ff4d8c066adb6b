"""Parts of the simulated world: what a power cut leaves, what a cut link delivers, what the store accepts."""

from __future__ import annotations

from typing import Any

from tidemark_core.base.effects import DropAfter, DropBefore, PutEntry, PutState, Wipe
from tidemark_core.base.entry import Entry, Kind, control
from tidemark_core.base.ids import NOTHING, EntryId, ShardId, of_shard
from tidemark_sim import partitions
from tidemark_sim.dice import Dice
from tidemark_sim.disk import Disk, Queued
from tidemark_sim.network import Network, NetworkOptions

SHARD = ShardId(1)


def entries(count: int) -> list[Entry]:
    made: list[Entry] = []
    prev, chain = NOTHING, 0
    for _ in range(count):
        entry = control(Kind.NOOP, b"x", epoch=1, prev=prev, prev_chain=chain, logged_ms=0)
        made.append(entry)
        prev, chain = EntryId(1, entry.last), entry.chain
    return made


def put(disk: Disk, *writes: Any) -> None:
    disk.enqueue(Queued(of_shard(SHARD), writes, ()), lambda *_: None)


def settle(disk: Disk, count: int) -> None:
    for item in disk.take(count):
        disk.settle(item)


def test_power_cut_keeps_whole_writes_in_order() -> None:
    disk = Disk()
    first, second, third = entries(3)
    put(disk, PutEntry(first), PutState(b"one"))
    put(disk, PutEntry(second), PutState(b"two"))
    put(disk, PutEntry(third), PutState(b"three"))
    assert disk.written[SHARD].last == 2

    settle(disk, 2)
    lost = disk.power_cut()

    assert lost == 1
    assert disk.image(SHARD).entries == [first, second] == disk.written[SHARD].entries
    assert disk.image(SHARD).state == b"two"


def test_truncation_trim_and_wipe() -> None:
    disk = Disk()
    made = entries(5)
    put(disk, *(PutEntry(entry) for entry in made), PutState(b"s"))
    put(disk, DropAfter(3))
    put(disk, DropBefore(1))
    settle(disk, 3)
    assert disk.image(SHARD).entries == made[1:4]

    put(disk, Wipe())
    settle(disk, 1)
    assert disk.image(SHARD).entries == []
    assert disk.image(SHARD).state == b"s"


def test_damage_stops_a_read_until_the_entry_is_rewritten() -> None:
    disk = Disk()
    made = entries(4)
    put(disk, *(PutEntry(entry) for entry in made))
    settle(disk, 1)
    disk.corrupt[SHARD, 2] = 1
    assert disk.read(SHARD, 0, 3, 1 << 20) == ((made[0], made[1]), 2)
    assert disk.read(SHARD, 2, 3, 1 << 20) == ((), 2)

    put(disk, PutEntry(made[2]))
    settle(disk, 1)
    assert disk.read(SHARD, 0, 3, 1 << 20) == (tuple(made), None)


def test_a_lost_payload_leaves_its_header_until_the_entry_is_rewritten_or_found_again() -> None:
    disk = Disk()
    made = entries(3)
    put(disk, *(PutEntry(entry) for entry in made))
    settle(disk, 1)
    disk.lose_payload((SHARD, 1), 0)
    disk.lose_payload((SHARD, 2), 0)
    assert disk.read(SHARD, 0, 2, 1 << 20) == ((made[0], made[1].bare(), made[2].bare()), None)
    assert not made[1].bare().held

    put(disk, PutEntry(made[1]))
    settle(disk, 1)
    disk.mend((SHARD, 2))
    assert disk.read(SHARD, 0, 2, 1 << 20) == (tuple(made), None)
    assert not disk.corrupt and not disk.lost


def test_read_stops_behind_its_bytes_but_returns_one() -> None:
    disk = Disk()
    made = entries(3)
    put(disk, *(PutEntry(entry) for entry in made))
    settle(disk, 1)

    assert disk.read(SHARD, 0, 2, 1) == ((made[0],), None)


def test_cut_link_loses_what_is_under_way_and_cuts_nest() -> None:
    scheduled: list[tuple[Any, tuple[Any, ...]]] = []
    network = Network(
        NetworkOptions(), Dice(1), lambda delay, action, *arguments: scheduled.append((action, arguments)), lambda: 0
    )
    arrived: list[str] = []
    network.send("a", "b", arrived.append, "under way")
    network.cut_link("a", "b")
    network.cut_link("a", "b")
    network.send("a", "b", arrived.append, "into the cut")
    network.send("b", "a", arrived.append, "the other way")
    network.mend_link("a", "b")
    assert not network.is_open("a", "b")

    for action, arguments in scheduled:
        action(*arguments)
    assert arrived == ["the other way"]

    network.mend_link("a", "b")
    assert network.is_open("a", "b")


def test_stream_keeps_its_order() -> None:
    due: list[int] = []
    network = Network(
        NetworkOptions(delay_ms_max=50, fifo=True), Dice(3), lambda delay, *_: due.append(delay), lambda: 0
    )
    for number in range(30):
        network.send("a", "b", print, number)

    assert due == sorted(due)


def test_dice_repeat_and_stay_in_range() -> None:
    one, other = Dice(7), Dice(7)

    assert [one.between(2, 5) for _ in range(50)] == [other.between(2, 5) for _ in range(50)]
    assert {one.between(2, 5) for _ in range(200)} == {2, 3, 4, 5}
    assert one.weighted((("a", 0.0), ("b", 0.0))) is None
    assert {one.weighted((("a", 0.0), ("b", 1.0))) for _ in range(20)} == {"b"}
    assert sorted(one.shuffled([1, 2, 3])) == [1, 2, 3]


def test_o44_every_partition_that_is_drawn_leaves_a_member_that_reaches_a_majority() -> None:
    """The leader of six neighbours in a row hears two of them, and appends can rightly wait (recovery seed 20159)."""
    dice = Dice(1)
    for size in range(3, 8):
        members = [f"n{number}" for number in range(1, size + 1)]
        drawn = [partitions.draw(dice, members, "n1", "op1") for _ in range(60)]

        assert all(partitions.reaching(members, one.cut, "op1") for one in drawn)
        names = {"leader cut off", "quorum loss", "constrained election", "any"} | ({"chained"} if size < 6 else set())
        assert names == {one.name for one in drawn}
