"""The plane of keyspaces in the simulator: strict registers on nodes that crash and lose links, while a range moves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
from tidemark_core.base.ids import Member
from tidemark_core.base.limits import Limits
from tidemark_core.base.refusals import Refused
from tidemark_core.optimistic.cells import Place, Sort
from tidemark_core.optimistic.coordinating.operations import Value, get, set_
from tidemark_core.optimistic.coordinating.outcomes import Outcome
from tidemark_core.optimistic.coordinating.reading import Repair
from tidemark_core.optimistic.coordinating.running import STRICT, Policy
from tidemark_core.optimistic.coordinating.writing import Done
from tidemark_core.optimistic.hinting.keeping import HINTS
from tidemark_core.optimistic.holding.layout import STRINGS, key_of
from tidemark_core.optimistic.moving import unfinished
from tidemark_core.optimistic.plane import Assign, Cluster, KeyspaceLimits, KeyspacePlane, Operate
from tidemark_core.optimistic.ring import Owners, Quorum, Range, begun, finished
from tidemark_core.optimistic.stamps import ZERO, Stamp
from tidemark_core.planes import PlaneTable, planes
from tidemark_sim.profiles import Options
from tidemark_sim.runner import run_seed
from tidemark_sim.trace import Violation

NUMBER = 78
UNIT = (5 << 32) + 3
KEYS = [b"a", b"b", b"c"]
OPERATIONS = 300
MAP_MS = 40
LIMITS = KeyspaceLimits(skew_ms=500, replay_pause_ms=100)


class Wrote(NamedTuple):
    """A write that a client has heard the end of, or not yet."""

    begun_ms: int
    ended_ms: int | None = None
    stamp: Stamp | None = None


class Registers:
    """A client of one range, its operator, and the judge: a read shows all that was answered before it began."""

    last: Registers
    policy = STRICT

    def __init__(self, world: Any, history: Any) -> None:
        type(self).last = self
        self.world = world
        members = [node.member for node in world.nodes.values()]
        self.record = Range(1, Owners(tuple(members[:3]), Quorum(3, 2, 2)))
        self.writes: dict[tuple[bytes, bytes], Wrote] = {}
        self.seen: dict[bytes, list[tuple[int, Stamp]]] = {key: [(-1, ZERO)] for key in KEYS}
        self.counts = dict.fromkeys(("ok", "read", "moves"), 0)
        self._asked = 0
        world.after(1, self._map)
        world.after(5, self._tick)

    # --- the operator -----------------------------------------------------------------------------------------

    def _map(self) -> None:
        """Give every node that hears the record, and move the range on when it may."""
        world = self.world
        for node in world.nodes.values():
            if node.core is not None and not world.dice.chance(0.5):
                node.feed(node.life, Assign(UNIT, self.record))
        if self.record.pending is not None:
            self._finish()
        elif len(world.nodes) > 3 and world.dice.chance(0.1) and self._asked < OPERATIONS:
            self._move()
        world.after(MAP_MS, self._map)

    def _move(self) -> None:
        """Swap one owner for a node that is none."""
        members = [node.member for node in self.world.nodes.values()]
        owners = list(self.record.own.members)
        newcomer = self.world.dice.pick([member for member in members if member not in owners])
        owners[self.world.dice.between(0, 2)] = newcomer
        self.record = begun(self.record, Owners(tuple(owners), self.record.own.quorum))

    def _finish(self) -> None:
        record, copied, durable = self.record, [], []
        for member in record.members:
            holder = self.holder(member)
            if holder is None:
                continue
            if holder.unit.durable.record.version == record.version:
                durable.append(member)
                if holder.copying.done == record.version and not holder.unit.durable.copying:
                    copied.append(member)
        if unfinished(record, copied, durable, []) is None:
            self.record = finished(record)
            self.counts["moves"] += 1

    def holder(self, member: Member) -> Any:
        node = self.world.nodes[member.node]
        return node.core.planes[NUMBER].holders.get(UNIT) if node.core is not None else None

    # --- the client -------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        world = self.world
        node = world.dice.pick(list(world.nodes.values()))
        if node.core is not None and UNIT in node.core.planes[NUMBER].records and self._asked < OPERATIONS:
            self._asked += 1
            key = world.dice.pick(KEYS)
            if world.dice.chance(0.5):
                self._write(node, key, b"%d" % self._asked)
            else:
                self._read(node, key)
        world.after(world.dice.around(6), self._tick)

    def _write(self, node: Any, key: bytes, value: bytes) -> None:
        self.writes[key, value] = Wrote(self.world.now_ms)
        self._ask(node, set_(key, value), lambda done: self._wrote(key, value, done))

    def _ask(self, node: Any, steps: Any, answer: Callable[[Any], None]) -> None:
        node.request(Operate(UNIT, self.world.request_number(), 2_000, steps, self.policy), answer)

    def _wrote(self, key: bytes, value: bytes, done: Done | Refused) -> None:
        if not isinstance(done, Done) or done.outcome is not Outcome.OK:
            return
        self.counts["ok"] += 1
        now_ms = self.world.now_ms
        self.writes[key, value] = self.writes[key, value]._replace(ended_ms=now_ms, stamp=done.stamp)
        self.seen[key].append((now_ms, done.stamp))

    def _read(self, node: Any, key: bytes) -> None:
        begun_ms = self.world.now_ms
        self._ask(node, get(key, lambda: begun_ms), lambda value: self._got(key, begun_ms, value))

    def _got(self, key: bytes, begun_ms: int, found: Value | Refused) -> None:
        if not isinstance(found, Value) or found.outcome is not Outcome.OK:
            return
        self.counts["read"] += 1
        least = max(stamp for ended_ms, stamp in self.seen[key] if ended_ms < begun_ms)
        if found.value is None:
            stamp: Stamp | None = ZERO
        elif (key, found.value) not in self.writes:
            raise Violation("register", f"{key!r} shows {found.value!r}, which no client wrote")
        else:
            stamp = self.writes[key, found.value].stamp
        if stamp is None:
            return    # its end is not known: it may take effect at any time (D76)
        if stamp < least:
            raise Violation("register", f"{key!r} shows {stamp}, a read or write before it has {least}")
        self.seen[key].append((self.world.now_ms, stamp))


class Sloppy(Registers):
    """A client of a keyspace with sloppy quorums.

    It writes each key once, reads repair nothing, and no range moves: hints alone bring a write to owners that missed
    it.  Replays end soon, so that many of them fail.
    """

    policy = Policy(Repair.OFF, sloppy=True)

    def _map(self) -> None:
        members = tuple(node.member for node in self.world.nodes.values())
        for node in self.world.nodes.values():
            if node.core is not None:
                node.feed(node.life, Cluster(members))
        super()._map()

    def _move(self) -> None:
        """A copy would deliver most writes before their hints do."""

    def _write(self, node: Any, key: bytes, value: bytes) -> None:
        self.seen[value] = []
        super()._write(node, value, value)

    def _wrote(self, key: bytes, value: bytes, done: Done | Refused) -> None:
        if isinstance(done, Done) and done.outcome is Outcome.SLOPPY:
            self.counts["sloppy"] = self.counts.get("sloppy", 0) + 1
            self.seen[key].append((self.world.now_ms, done.stamp))
        super()._wrote(key, value, done)

    def _read(self, node: Any, key: bytes) -> None:
        self._write(node, key, b"%d" % self._asked)

    def judge(self) -> None:
        """Every acknowledged write is on the disks of a write quorum, and no hint is left."""
        tables = {node.member: node.disk.durable_tables for node in self.world.nodes.values()}
        assert [] == [row for each in tables.values() for row in each.scan(HINTS)]
        for key in (key for key, seen in self.seen.items() if seen and key not in KEYS):
            place = key_of(UNIT, Place(Sort.STRING, key))
            holders = [member for member, each in tables.items() if each.get(STRINGS, place) is not None]
            assert self.record.write(holders), key


def with_keyspace(options: Options) -> None:
    def table(limits: Limits) -> PlaneTable:
        return {**planes(limits), NUMBER: partial(KeyspacePlane, number=NUMBER, limits=LIMITS)}

    options.planes = table
    options.faults.wipe = 0.0
    options.cluster.nodes = 5


SEEDS = range(7_000, 7_008)
PROFILES = ("swarm", "replication", "disks")


def run(seed: int, judge: type[Registers] = Registers) -> Any:
    return run_seed(seed, PROFILES[seed % 3], checkers=(judge,), adjust=with_keyspace)


def test_d60_d64_d75_a_read_shows_every_write_and_every_read_before_it_while_a_range_moves() -> None:
    counts: dict[str, int] = {}
    for seed in SEEDS:
        result = run(seed)
        assert result.passed, f"{result.message}\n{result.replay}\n" + "\n".join(result.story)
        last = Registers.last
        unknown = sum(wrote.ended_ms is None for wrote in last.writes.values())
        for what, count in {**last.counts, "unknown": unknown}.items():
            counts[what] = counts.get(what, 0) + count
    assert min(counts.values()) >= 5, counts


def test_d64_the_judge_finds_writes_that_are_acknowledged_by_one_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owners, "write", lambda self, stored: bool(stored))
    assert "register" in {run(seed).rule for seed in SEEDS}


def test_d73_every_write_that_nodes_kept_for_owners_is_delivered() -> None:
    counts: dict[str, int] = {}
    for seed in range(7_008, 7_014):
        result = run(seed, Sloppy)
        assert result.passed, f"{result.message}\n{result.replay}\n" + "\n".join(result.story)
        last = Sloppy.last
        last.world.run_until(last.world.now_ms + 5_000)
        last.judge()
        for what, count in last.counts.items():
            counts[what] = counts.get(what, 0) + count
    assert counts["sloppy"] >= 5, counts
