"""Blocks of others are passed over without a look, and still each offset comes from exactly one member.

Members share a log of random blocks, control entries and rolled-back ranges, of which each has trimmed what it likes;
they are told of it bit by bit, with windows of any size.
"""

from __future__ import annotations

from random import Random

from google_crc32c import value as crc32c
from tidemark_core.base.entry import Batch, Entry, Kind, control, seal
from tidemark_core.delivery.messages import Item, Shipment, Start, Started, Window, singly
from tidemark_core.delivery.order import Block, Mode
from tidemark_core.delivery.sender import End, Look, Say, Sender, Wait
from tidemark_core.delivery.stretch import Stretch
from tidemark_core.replication.log import OFFSET_MAX, Log

from tests.seeds import every_seed

NODES = ("a", "b", "c")
OPENING = 0


class Author:
    """Writes a log and folds it as a replica does."""

    def __init__(self) -> None:
        self.log = Log()
        self.entries: list[Entry] = []
        self.control(Kind.EPOCH_START)

    @property
    def head(self) -> int:
        return self.log.head.offset

    def data(self, order: int, records: int = 1) -> None:
        payload = b"payload"
        batch = Batch(b"p" * 16, len(self.entries), records, 1, 2, crc32c(payload), payload)
        self._add(seal(batch, kind=Kind.DATA, epoch=1, prev=self.log.head, prev_chain=self.log.chain, logged_ms=0,
                       order=order))

    def control(self, kind: Kind, argument: int = -1) -> None:
        self._add(control(kind, b"", epoch=1, prev=self.log.head, prev_chain=self.log.chain, logged_ms=0,
                          argument=argument))

    def _add(self, entry: Entry) -> None:
        self.log.append(entry)
        self.entries.append(entry)

    def settle(self) -> Author:
        self.log.settle(self.head)
        return self


def order_of(slots: list[int]) -> int:
    return sum(slot << 4 * place for place, slot in enumerate(slots))


def random_log(dice: Random) -> Author:
    author = Author()
    for _ in range(dice.randint(1, 6)):
        begin = author.head + 1
        if dice.random() < 0.3:
            author.control(Kind.CONFIRM, -1)    # what is rolled back may begin in the block before
        for _ in range(dice.randint(1, 3)):
            order = order_of(dice.sample([0, 1, 2], 3))
            for _ in range(dice.randint(1, 4)):
                if dice.random() < 0.3:
                    author.control(Kind.CONFIRM, -1)
                else:
                    author.data(order, dice.randint(1, 3))
        if dice.random() < 0.5:
            author.control(Kind.ROLLBACK, begin)
    return author.settle()


class Member:
    """One member's sender on a log of which it trimmed what lies below `first`."""

    def __init__(self, author: Author, name: str, start: Start, first: int) -> None:
        self.author = author
        self.name = name
        self.first = first
        self.released = -1
        self.sender = Sender(start, name, 1 << 20)
        self.told = start.first - 1
        self.items: list[Item] = []
        self.looked_at: list[int] = []
        self.now_ms = 0

    def holes(self, first: int, last: int) -> list[tuple[int, int]]:
        return self.author.log.decisions.holes(first, last, self.author.head)

    def block_at(self, offset: int) -> Block:
        return self.author.log.block_at(offset)

    def run(self) -> None:
        """Step until it waits."""
        readable = self.first, self.released
        for _ in range(1_000):
            step = self.sender.step(self.now_ms, readable, self.holes, self.block_at)
            match step:
                case Say(Started() as started):
                    self.told = max(self.told, started.first - 1)
                case Say(Shipment() as shipment):
                    assert shipment.first == self.told + 1, "no gap in what is told"
                    self.told = shipment.through
                    self.items += singly(shipment.items)
                case Look():
                    self.look(step)
                case Wait() | End():
                    self.now_ms += 1_000
                    return
        raise AssertionError("it does not come to rest")

    def look(self, step: Look) -> None:
        asked = step.asked
        found = Stretch(asked.first - 1)
        headers = [entry for entry in self.author.entries if entry.last >= asked.first and entry.last <= asked.last]
        found.look(self.sender.rule, asked, headers)
        found.bring(found.wanted, None)
        self.looked_at += [piece.first for piece in found.ours] or ([asked.first] if not found.more else [])
        self.sender.looked(self.now_ms, step, found, (self.first, self.released), self.holes, self.block_at)


@every_seed(150)
def test_each_offset_comes_from_one_member(seed: int):
    dice = Random(seed)
    author = random_log(dice)
    bases = [entry.base for entry in author.entries]
    down = tuple(sorted(dice.sample(NODES, dice.choice((0, 0, 1, 2)))))
    mode = dice.choice((Mode.SINGLE_COPY, Mode.LOCAL))
    near = tuple(dice.randint(0, 2) for _ in NODES) if mode is Mode.LOCAL else ()
    first = dice.randint(0, author.head)
    start = Start(1, first, -1, mode, down, NODES, near, dice.choice((0, 100, 1 << 20)))
    up = [name for name in NODES if name not in down]
    members = [
        Member(author, name, start, dice.choice([0, 0, first, *(base for base in bases if base > first)]))
        for name in up
    ]
    while any(member.told < author.head for member in members):
        for member in members:
            cut = min(author.head, member.released + dice.randint(0, author.head))
            member.released = author.log.decisions.safe_cut(cut, author.head)
            member.sender.on_window(Window(1, member.sender.granted_bytes + dice.randint(0, 300)))
            member.run()
    sent = sorted((item.last, item.first, member.name) for member in members for item in member.items)
    held = max(first, *(member.first for member in members))     # from here on nobody has trimmed anything
    ends = [last for last, _, _ in sent if last >= held]
    assert len(ends) == len(set(ends)), "an offset came from two members"
    expected = {last for begin, last in author.log.decisions.holes(held, author.head, author.head)}
    hidden = [range(begin, last + 1) for begin, last in author.log.decisions.holes(0, author.head, author.head)]
    expected |= {
        entry.last for entry in author.entries
        if entry.last >= held and not any(entry.last in offsets for offsets in hidden)
    }
    assert set(ends) == expected, "what is in no item was nobody's to send"
    for member in members:
        for item in member.items:
            for offsets in hidden:
                if item.last in offsets:
                    assert item.first == max(offsets[0], first, member.first), "a hole is whole"
        sent_by = {item.first for item in member.items}
        assert set(member.looked_at) <= sent_by, "it looked where nothing is its to send"


def test_a_block_of_others_takes_one_step_however_long_it_is():
    author = Author()
    for order in (order_of([0, 1]), order_of([1, 0]), order_of([0, 1])):
        for number in range(5_000):
            author.data(order)
            if number % 100 == 0:
                author.control(Kind.CONFIRM, -1)
    author.settle()
    start = Start(1, 0, -1, Mode.SINGLE_COPY, (), ("a", "b"), (), 1 << 30)
    member = Member(author, "b", start, 0)
    member.released = author.head
    member.run()
    member.run()                               # coverage of the tail has its time
    assert member.told == author.head
    block = range(5_051, 5_051 + 5_050)
    assert [item.first for item in member.items] == list(block), "the data of its block and what lies between them"
    assert member.looked_at == list(block)
    assert member.sender.left_out == author.head + 1 - len(block)


def test_the_block_in_force_is_known_however_the_log_is_cut():
    """K1: at every offset that is held, whatever was trimmed or truncated, it is as the whole log says."""
    author = random_log(Random(5))
    known = {offset: author.log.block_at(offset) for offset in range(author.head + 1)}
    last = None
    for entry in author.entries:
        last = entry.order if entry.kind is Kind.DATA else last
        assert known[entry.base].order == (OPENING if last is None else last)
    assert known[author.head].last == OFFSET_MAX
    for base in [entry.base for entry in author.entries]:
        author.log.trim(base)
        assert all(author.log.block_at(offset) == known[offset] for offset in range(base, author.head + 1))
    restored = Log.restore(author.log.checkpoint().encode(), (), author.head)
    assert restored.block_at(author.head) == known[author.head]
