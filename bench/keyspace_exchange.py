"""keyspace-exchange: two owners compare a range of a million keys: messages, bytes and time; cores alone, no disk.

Both trees are filled as an owner's are: from scans of its rows, a page at a time.  Every message passes the wire's
codecs both ways.  Stays out: reading rows that differ from a disk, and storing them.
"""

from __future__ import annotations

import random
import statistics
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import Place, Row, Sort, StringCell, decode_place
from tidemark_core.optimistic.exchanging.giving import on_open, on_sketch, on_want
from tidemark_core.optimistic.exchanging.messages import Given, Listed, Open, Opened, Sketch, Want
from tidemark_core.optimistic.exchanging.pulling import Ended, Look, LookAt, Outcome, Pull, Take, To
from tidemark_core.optimistic.exchanging.tree import Tree, Weighed, weigh
from tidemark_core.optimistic.holding.unit import PAGES_MAX
from tidemark_core.optimistic.owner import STORED
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.stamps import Stamp
from tidemark_wire.optimistic import CODECS

from .context import Context
from .figures import Outcome as Found
from .figures import number, percentile

SUMMARY = "two owners compare a range of many keys: messages, bytes, time"

DIFFER = 10
VALUE_BYTES = 100
EQUAL_SECONDS_MAX, EQUAL_ROUNDS_MAX, DIFFER_MESSAGES_MAX = 1.0, 1, 19
EQUAL, SPREAD, TOGETHER, BARE = "equal", "10 keys differ", "10 neighbours differ", "the puller has none"
RECORD = Range(1, Owners((Member("a", "1"), Member("b", "1")), Quorum(2, 1, 2)))


class Side:
    """One owner: its rows by place, in order, and its tree."""

    def __init__(self, rows: Sequence[Weighed]) -> None:
        self.rows = rows
        self.tree = Tree()
        while (scan := self.tree.next_scan(0)) is not None:
            page, rest = self.page(scan.first, scan.behind)
            self.tree.scanned(page, rest)

    def page(self, first: bytes, behind: bytes) -> tuple[Sequence[Weighed], bytes | None]:
        """Return the rows of a part, at most a page of them, and the place behind them where there are more."""
        begin, end = (bisect_left(self.rows, at, key=lambda row: row.at) for at in (first, behind))
        more = end - begin > PAGES_MAX
        return self.rows[begin:begin + PAGES_MAX if more else end], self.rows[begin + PAGES_MAX].at if more else None

    def at(self, places: Sequence[Place]) -> Iterator[Weighed]:
        """Yield the rows at these places."""
        wanted = {row.at: row for row in (_weighed(place, b"") for place in places)}
        for at in wanted:
            number = bisect_left(self.rows, at, key=lambda row: row.at)
            if number < len(self.rows) and self.rows[number].at == at:
                yield self.rows[number]


class Counted(NamedTuple):
    """One exchange: messages both ways with their bytes on the wire, and rows that the puller took."""

    messages: int
    wire_bytes: int
    rows: int
    seconds: float


def _row(value: bytes) -> StringCell:
    return StringCell(Stamp(1, 0, "a", bytes(8)), False, 0, value)


def _weighed(place: Place, value: bytes) -> Weighed:
    weighed = weigh(place, _row(value), 0)
    assert weighed is not None
    return weighed


def rows_of(count: int) -> list[Weighed]:
    """Return so many rows in the order of their places, as a tree takes them."""
    return [_weighed(Place(Sort.STRING, b"%016x" % each), b"v" * VALUE_BYTES) for each in range(count)]


def changed(rows: Sequence[Weighed], numbers: Sequence[int]) -> list[Weighed]:
    """Return rows of which some have other values."""
    other = list(rows)
    for each in numbers:
        other[each] = _weighed(decode_place(rows[each].at), b"w" * VALUE_BYTES)
    return other


def exchange(puller: Side, source: Side) -> Counted:
    """Run one exchange to its end.  Raises ValueError where it is not complete."""
    began = time.perf_counter()
    pull = Pull(1, 0, RECORD.own.members[1], RECORD, puller.tree)
    messages = wire_bytes = 0
    steps: list[Any] = list(pull.begin())
    while steps:
        match steps.pop(0):
            case To(message):
                answer = _answer(source, _passed(message))
                messages, wire_bytes = messages + 2, wire_bytes + len(_encoded(message)) + len(_encoded(answer))
                steps += _taken(pull, _passed(answer))
            case Look(first, behind):
                page, rest = puller.page(first, behind)
                steps += pull.on_looked(page if rest is None else None)
            case LookAt(places):
                steps += pull.on_looked_at(list(puller.at(places)))
            case Take(rows):
                steps += pull.on_taken(len(rows), STORED)
            case Ended(Outcome.COMPLETE):
                return Counted(messages, wire_bytes, pull.rows_taken, time.perf_counter() - began)
    raise ValueError(f"the exchange ended as {pull.ended}")


def _encoded(message: Any) -> bytes:
    return CODECS.by_message[type(message)].encode(message)


def _passed(message: Any) -> Any:
    """Return a message as its receiver reads it."""
    codec = CODECS.by_message[type(message)]
    return codec.decode(codec.encode(message))


def _answer(source: Side, message: Open | Sketch | Want) -> Any:
    match message:
        case Open():
            return on_open(message, source.tree)
        case Sketch():
            pages = [source.page(leaf.first, leaf.behind) for leaf in message.leaves]
            assert all(rest is None for _, rest in pages)
            return on_sketch(message, [rows for rows, _ in pages])
        case Want():
            held: dict[Place, Row] = {place: _row(b"w" * VALUE_BYTES) for place in message.places}
            return on_want(message, held)


def _taken(pull: Pull, answer: Opened | Listed | Given) -> Sequence[Any]:
    match answer:
        case Opened():
            return pull.on_opened(answer)
        case Listed():
            return pull.on_listed(answer)
        case Given():
            return pull.on_given(answer)


def tell(outcome: Found, found: dict[str, list[Counted]], keys: int) -> None:
    """Add the figures of each pair of owners."""
    for pair, counted in found.items():
        first = counted[0]
        seconds = statistics.median(one.seconds for one in counted)
        equal = pair == EQUAL
        outcome.add(
            f"{pair}: time", seconds, "s", target=EQUAL_SECONDS_MAX if equal else None, at_most=True,
            basis=f"{keys:,} keys; median of {len(counted)}")
        if equal:
            outcome.add(
                f"{pair}: message rounds", first.messages / 2, "rounds", target=EQUAL_ROUNDS_MAX, at_most=True)
        else:
            worst = max(one.messages for one in counted)
            outcome.add(
                f"{pair}: messages", worst, "messages", target=DIFFER_MESSAGES_MAX if pair == SPREAD else None,
                at_most=True, basis=f"both ways, the most of {len(counted)}")
        outcome.add(f"{pair}: bytes of all messages", percentile([one.wire_bytes for one in counted], 50), "bytes")


def run(context: Context) -> Found:
    outcome = Found("keyspace-exchange", "Comparing a range of a keyspace between two owners: trees in memory, no disk")
    keys, rounds = context.count(full=1_000_000, quick=100_000), context.count(full=5, quick=2)
    context.say(f"filling trees of {keys:,} keys")
    rows = rows_of(keys)
    began = time.perf_counter()
    source = Side(rows)
    filled = time.perf_counter() - began
    found: dict[str, list[Counted]] = {EQUAL: [], SPREAD: [], TOGETHER: []}
    same, chance = Side(rows), random.Random(1)
    for _ in range(rounds):
        found[EQUAL].append(exchange(same, source))
        found[SPREAD].append(exchange(Side(changed(rows, chance.sample(range(keys), DIFFER))), source))
        first = chance.randrange(keys - DIFFER)
        found[TOGETHER].append(exchange(Side(changed(rows, range(first, first + DIFFER))), source))
    assert all(one.rows == DIFFER for pair in (SPREAD, TOGETHER) for one in found[pair])
    tell(outcome, found, keys)
    outcome.add("filling one tree from its rows", filled, "s", basis=f"{number(keys)} rows that are in memory")
    outcome.add("leaves of a tree", source.tree.leaves, "leaves")
    outcome.configuration = {"keys": keys, "value bytes": VALUE_BYTES, "rounds": rounds, "keys that differ": DIFFER}
    outcome.samples = {pair: [one._asdict() for one in counted] for pair, counted in found.items()}
    return outcome
