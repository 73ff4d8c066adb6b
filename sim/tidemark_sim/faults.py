"""The faults of a run: what breaks, when, and when it is mended.

Faults come at random times by weight, and as ambushes: right after a record was stored, its writer, the leader or
the new member may die.  The number of members that lost their disk or hold damage never exceeds what a shard can
lose, because losing more is not a fault to survive without a person's consent (`lose_disks`).
Stays out: how a crash looks (`node`, `disk`, `operators`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark_core.base.effects import Space
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import Member, OperatorId, ShardId, of_shard
from tidemark_core.base.quorum import majority
from tidemark_core.replication.messages import DeleteShard
from tidemark_core.replication.records import ShardRecord

from . import partitions
from .rebuilding import rebuild

if TYPE_CHECKING:
    from .node import Node
    from .operators import Operator
    from .world import World


@dataclass(slots=True)
class FaultOptions:
    """Weights by kind; a kind of weight 0 does not happen in this run.  Times are means."""

    every_ms: int = 120
    down_ms: int = 200
    crash: float = 0.0
    crash_leader: float = 0.0
    cut_one_way: float = 0.0
    cut_pair: float = 0.0
    isolate: float = 0.0
    depose: float = 0.0
    cut_peers: float = 0.0
    lag: float = 0.0
    slow_link: float = 0.0
    slow_disk: float = 0.0
    sync_error: float = 0.0
    wipe: float = 0.0
    disk_full: float = 0.0
    disks_full: float = 0.0
    corrupt: float = 0.0
    clock_jump: float = 0.0
    wrong_clock: float = 0.0        # chance that a life of one chosen node has a clock that is hours or days off
    operator_crash: float = 0.0
    operator_cut: float = 0.0
    store_down: float = 0.0
    lease: float = 0.0
    power_cut: float = 0.0
    ambush: float = 0.0             # chance per stored record of a change, a fifth of it for other records
    ambush_rollback: float = 0.0    # chance each time a rollback record is written, durable, acknowledged, confirmed
    stall: float = 0.0
    pause: float = 0.0
    suspicion: float = 0.0
    metadata_lost: float = 0.0
    partial: float = 0.0
    delete_replica: float = 0.0
    lose_disks: float = 0.0


KINDS = (
    "crash", "crash_leader", "cut_one_way", "cut_pair", "isolate", "cut_peers", "lag", "slow_link", "slow_disk",
    "sync_error", "wipe", "disk_full", "corrupt", "clock_jump", "operator_crash", "operator_cut", "store_down", "lease",
    "power_cut", "stall", "pause", "metadata_lost", "disks_full", "partial", "delete_replica", "depose",
    "lose_disks",
)

HOUR_MS = 3_600_000
WRONG_MS_MAX = 10 * 24 * HOUR_MS
SANE_SKEW_MS = 20


def both_ways(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return both directions of each pair."""
    return [*pairs, *((second, first) for first, second in pairs)]


class Faults:
    """Breaks things until `calm`; everything it breaks it mends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.options = world.options.faults
        self.over = False
        self.deleting: Node | None = None   # deletes its replica on the word of an operator that is gone
        self._wrong_clock = next(iter(world.nodes)) if self.options.wrong_clock else ""
        self._choices = [(getattr(self, kind), getattr(self.options, kind)) for kind in KINDS]

    def tick(self) -> None:
        world = self.world
        if self.over:
            world.idle()
            return
        fault = world.dice.weighted(self._choices)
        if fault is not None:
            fault()
        world.after(world.dice.around(self.options.every_ms), self.tick)

    def calm(self, absent: Sequence[str] = ()) -> None:
        """Mend everything and break nothing more; nodes named in `absent` stay down until the next calm."""
        self.over = True
        world = self.world
        world.network.calm()
        world.metadata.calm()
        world.shard_map.calm(bool(absent))
        world.successors.calm()
        world.options.disk.crash_in_step = 0.0
        world.options.cluster.operator_crash_in_step = 0.0
        world.options.cluster.probe_lost = 0.0
        for node in world.nodes.values():
            node.slow_disk_ms = 0
            node.sync_error = False
            node.resume()
            if node.space:
                node.set_space(Space.FREE)
            node.stays_down = node.name in absent
            if node.stays_down:
                node.crash()
            else:
                node.start()
        # The lease ends with one of them: two active ones are safe, but may undo each other's work for ever (O3).
        for number, operator in enumerate(world.operators.values()):
            operator.start()
            operator.set_active(number == 0)
        world.all_links_changed()

    # --- helpers ------------------------------------------------------------------------------------------

    def _node(self) -> Node:
        return self.world.dice.pick(list(self.world.nodes.values()))

    def _leader(self) -> Node | None:
        leader = self.world.metadata.record(self.world.dice.pick(self.world.shards)).leader
        return self.world.nodes[leader.node] if leader else None

    def down_ms(self) -> int:
        return 5 + self.world.dice.around(self.options.down_ms)

    def revive_later(self, node: Node) -> None:
        self.world.after(self.down_ms(), node.start)

    def revive_operator_later(self, operator: Operator) -> None:
        self.world.after(self.down_ms() // 2, operator.start)

    # --- processes ----------------------------------------------------------------------------------------

    def crash(self, node: Node | None = None) -> None:
        node = node or self._node()
        if node.alive:
            node.crash()
            self.revive_later(node)

    def crash_leader(self) -> None:
        if (leader := self._leader()) is not None:
            self.crash(leader)

    def pause(self) -> None:
        """A process stands still for a while, with all its connections open."""
        node = self._node()
        if node.alive and node.held is None:
            node.pause()
            self.world.trace.count("pauses")
            self.world.after(2 * self.down_ms(), self._resume, node, node.life)

    def _resume(self, node: Node, life: int) -> None:
        if node.life == life:
            node.resume()
        else:
            self.world.idle()

    def power_cut(self) -> None:
        """Every node at once."""
        for node in self.world.nodes.values():
            self.crash(node)

    def operator_crash(self, operator: Operator | None = None) -> None:
        operator = operator or self.world.dice.pick(list(self.world.operators.values()))
        if operator.alive:
            operator.crash()
            self.revive_operator_later(operator)

    def lease(self) -> None:
        """The lease that saves work moves; sometimes both hold it, sometimes nobody for a while."""
        for operator in self.world.operators.values():
            active = self.world.dice.chance(0.6)
            if active != operator.active:
                operator.set_active(active)

    # --- network ------------------------------------------------------------------------------------------

    def cut(self, pairs: list[tuple[str, str]], times: int = 1) -> None:
        world = self.world
        for source, target in pairs:
            world.network.cut_link(source, target)
        world.trace.note("net", "cut", " ".join(f"{source}>{target}" for source, target in pairs))
        world.pairs_changed(pairs)
        world.after(times * self.down_ms(), self._mend, pairs)

    def _mend(self, pairs: list[tuple[str, str]]) -> None:
        world = self.world
        if self.over:
            world.idle()
            return
        for source, target in pairs:
            world.network.mend_link(source, target)
        world.trace.note("net", "mended", " ".join(f"{source}>{target}" for source, target in pairs))
        world.pairs_changed(pairs)

    def _two(self) -> tuple[str, str]:
        first, second = self.world.dice.shuffled([*self.world.nodes, *self.world.operators])[:2]
        return first, second

    def cut_one_way(self) -> None:
        self.cut([self._two()])

    def cut_pair(self) -> None:
        first, second = self._two()
        self.cut([(first, second), (second, first)])

    def isolate(self, name: str | None = None) -> None:
        """Cut one node off from everybody, in one direction or both."""
        name = name or self._node().name
        others = [other for other in (*self.world.nodes, *self.world.operators) if other != name]
        both = self.world.dice.chance(0.6)
        out = self.world.dice.chance(0.5)
        pairs = [(name, other) for other in others] if both or out else []
        if both or not out:
            pairs += [(other, name) for other in others]
        self.cut(pairs)

    def depose(self) -> None:
        """Cut a leader off from nodes and operators but not from clients, until the others have replaced it."""
        leader = self._leader()
        if leader is None:
            return
        others = [other for other in (*self.world.nodes, *self.world.operators) if other != leader.name]
        self.cut([pair for other in others for pair in ((leader.name, other), (other, leader.name))], times=3)

    def cut_peers(self) -> None:
        """Cut nodes off from each other but not from operators: leaders that reach nobody follow each other."""
        nodes = list(self.world.nodes)
        deaf = nodes if self.world.dice.chance(0.5) else self.world.dice.shuffled(nodes)[: len(nodes) // 2 + 1]
        self.cut([(source, target) for source in nodes for target in deaf if source != target])

    def partial(self) -> None:
        """Cut some links of an ensemble, so that a member still reaches a majority."""
        world, dice = self.world, self.world.dice
        record = world.metadata.record(dice.pick(world.shards))
        if record.leader is None or len(record.ensemble) < 2:
            return
        names = [member.node for member in record.ensemble]
        partition = partitions.draw(dice, names, record.leader.node, dice.pick(list(world.operators)))
        world.trace.count(f"partial {partition.name}")
        self.cut(both_ways(partition.cut), times=dice.between(1, 8))

    def lag(self) -> None:
        """Keep a minority from hearing the leader, for long: then what commits is on a bare majority."""
        world = self.world
        self._lag(world.metadata.record(world.dice.pick(world.shards)))
        if world.dice.chance(0.5):
            # Slow copies are when people begin to move them.
            world.after(5 + world.dice.around(30), world.admin.act)

    def _lag(self, record: ShardRecord) -> None:
        dice = self.world.dice
        leaver = record.change.old if record.change else None
        others = [member.node for member in record.ensemble if member not in (record.leader, leaver)]
        if record.leader is not None and others:
            deaf = dice.shuffled(others)[: dice.between(1, max(1, len(record.ensemble) // 2))]
            self.cut([(record.leader.node, name) for name in deaf], times=3)

    def slow_link(self) -> None:
        world = self.world
        pair = self._two()
        world.network.slow[pair] = world.dice.between(20, 200)
        world.after(self.down_ms(), self._quicken_link, pair)

    def _quicken_link(self, pair: tuple[str, str]) -> None:
        self.world.idle()
        self.world.network.slow.pop(pair, None)

    def stall(self) -> None:
        """Hold what followers say to the leader until about the moment when its writers have waited enough."""
        world = self.world
        shard = world.dice.pick(world.shards)
        record = world.metadata.record(shard)
        if record.leader is None:
            return
        timeout_ms = world.shard_map.settings[shard].timeout_ms
        delay = max(1, min(timeout_ms, 2_000) + world.dice.between(-40, 20))
        for member in record.ensemble:
            pair = (member.node, record.leader.node)
            if member != record.leader and world.dice.chance(0.8):
                world.network.slow[pair] = delay
                world.after(5 + world.dice.around(self.options.down_ms // 2), self._quicken_link, pair)
        world.trace.count("stalls")

    def operator_cut(self) -> None:
        world = self.world
        operator = world.dice.pick(list(world.operators))
        nodes = world.dice.shuffled(list(world.nodes))[: world.dice.between(1, len(world.nodes))]
        self.cut([(operator, node) for node in nodes] + [(node, operator) for node in nodes])

    def store_down(self) -> None:
        world = self.world
        if not world.metadata.down:
            world.metadata.down = True
            world.trace.note("store", "down")
            world.after(self.down_ms(), self._store_up)

    def _store_up(self) -> None:
        self.world.metadata.down = False
        self.world.trace.note("store", "up")

    def metadata_lost(self) -> None:
        """The store loses everything while no operator runs, and is rebuilt from what some nodes say (`rebuilding`)."""
        if self.world.metadata.lost:
            return
        for operator in self.world.operators.values():
            self.operator_crash(operator)
        rebuild(self.world)

    def metadata_given_up(self, shard: ShardId) -> None:
        """Operators are stopped and a person accepts the loss of a shard by the recovery of metadata (N14)."""
        if self.world.metadata.lost or self.world.metadata.down:
            return
        for operator in self.world.operators.values():
            self.operator_crash(operator)
        rebuild(self.world, given_up=(shard,))

    def delete_replica(self) -> None:
        """A member deletes its replica on the late word of an operator that is gone, as far as a shard bears it."""
        world, node = self.world, self._node()
        shard = world.dice.pick(world.shards)
        held = node.core.log.shards.get(shard) if node.core is not None else None
        if held is None or node.held is not None or not held.replica.state.election or held.leader is not None:
            return
        if node.member in world.metadata.record(shard).ensemble and self.can_lose(shard, node):
            state = held.replica.state
            world.trace.count("replicas_deleted")
            late = DeleteShard(state.epoch, state.election)
            gone = OperatorId(f"{next(iter(world.operators))}.gone")
            self.deleting = node
            node.receive(of_shard(shard), gone, node.member, late)
            self.deleting = None

    # --- disks --------------------------------------------------------------------------------------------

    def slow_disk(self) -> None:
        node = self._node()
        node.slow_disk_ms = self.world.dice.between(10, 120)
        self.world.after(self.down_ms(), self._quicken_disk, node)

    def _quicken_disk(self, node: Node) -> None:
        self.world.idle()
        node.slow_disk_ms = 0

    def sync_error(self) -> None:
        node = self._node()
        if node.alive:
            node.sync_error = True

    def disk_full(self) -> None:
        self._fill(self._node())

    def disks_full(self) -> None:
        """Fill the disks of several nodes at once, mostly a majority of some shard."""
        dice = self.world.dice
        nodes = dice.shuffled(list(self.world.nodes.values()))
        for node in nodes[: dice.between(1, len(nodes))]:
            self._fill(node)

    def _fill(self, node: Node) -> None:
        """A disk is full for a time; half of them are exhausted, most of these after a while."""
        if not node.space:
            dice = self.world.dice
            node.set_space(Space.EXHAUSTED if dice.chance(0.25) else Space.FULL)
            self.world.trace.count("disks_full")
            self.world.after(self.down_ms(), self._disk_has_space, node)
            if node.space is Space.FULL and dice.chance(0.33):
                self.world.after(self.down_ms() // 2, self._disk_is_exhausted, node)

    def _disk_is_exhausted(self, node: Node) -> None:
        if node.space is Space.FULL:
            node.set_space(Space.EXHAUSTED)
        else:
            self.world.idle()

    def _disk_has_space(self, node: Node) -> None:
        if node.space:
            node.set_space(Space.FREE)
        else:
            self.world.idle()

    def wipe(self, node: Node | None = None) -> None:
        """Lose a whole disk, if every shard can bear it."""
        node = node or self._node()
        if all(self.can_lose(shard, node) for shard in self.world.shards):
            node.wipe()
            self.revive_later(node)

    def lose_disks(self) -> None:
        """Lose so many disks of a shard that no majority is left; a person must accept the loss (K14e)."""
        world, dice = self.world, self.world.dice
        shard = dice.pick(world.shards)
        record = world.metadata.record(shard)
        members, refilled = record.ensemble, record.refill <= len(record.ensemble)
        if not refilled or len(members) < 3 or self._failed(shard, members):
            return
        world.trace.count("majorities_lost")
        losers = [world.nodes[member.node] for member in dice.shuffled(list(members))]
        if dice.chance(0.7):   # those that hold the most
            losers.sort(key=lambda node: node.disk.image(shard).last, reverse=True)
        for node in losers[: dice.between(majority(len(members)), len(members) - 1)]:
            node.wipe()
            self.revive_later(node)

    def can_lose(self, shard: ShardId, loser: Node) -> bool:
        """Say whether `loser` may lose its copy: a shard bears the loss of a minority of either ensemble."""
        record = self.world.metadata.record(shard)
        ensembles = [record.ensemble]
        if record.change is not None:
            final = tuple(member for member in record.ensemble if member != record.change.old)
            ensembles.append((*final, record.change.new) if record.change.new else final)
        return all(self._failed(shard, ensemble, loser) <= (len(ensemble) - 1) // 2 for ensemble in ensembles)

    def _failed(self, shard: ShardId, ensemble: tuple[Member, ...], loser: Node | None = None) -> int:
        failed = 0
        for member in ensemble:
            node = self.world.nodes[member.node]
            damaged = any(place[0] == shard for place in node.disk.corrupt)
            if node is loser or node.lost(member, shard) or damaged:
                failed += 1
        return failed

    def corrupt(self) -> None:
        """Damage one stored entry: a committed one that is whole elsewhere, or one above commit, held by any number.

        Above commit the header is damaged, or the payload is lost and the header is whole.
        """
        world = self.world
        shard = world.dice.pick(world.shards)
        node = self._node()
        image = node.disk.image(shard)
        if node.member not in world.metadata.record(shard).ensemble or not self.can_lose(shard, node):
            return
        committed = world.checkers.committed_last(shard)
        above = [entry for entry in image.entries if entry.last > committed]
        if above and world.dice.chance(0.7):
            self.damage(node, shard, world.dice.pick(above))
            return
        settled = [entry for entry in image.entries if entry.last <= committed]
        if not settled:
            return
        newest_first = world.dice.chance(0.5)
        reach = min(5, len(settled) - 1) if newest_first else len(settled) - 1
        at = -1 - world.dice.between(0, reach)
        entry = settled[at]
        holders = sum(
            1
            for member in world.metadata.record(shard).ensemble
            if world.nodes[member.node].member == member
            and (held := world.nodes[member.node].disk.image(shard).at(entry.base)) is not None
            and held.chain == entry.chain and held.held
            and (shard, entry.base) not in world.nodes[member.node].disk.corrupt
        )
        if holders >= 2:
            node.disk.corrupt[shard, entry.base] = world.now_ms
            world.trace.count("corrupted")
            world.trace.note(node.name, "corrupt", entry)

    def damage(self, node: Node, shard: ShardId, entry: Entry) -> None:
        """Damage an entry above commit on one disk."""
        place = (shard, entry.base)
        if place in node.disk.corrupt:
            return
        self.world.trace.count("corrupted_above_commit")
        self.world.trace.note(node.name, "corrupt", entry)
        if entry.kind is Kind.DATA and entry.payload and self.world.dice.chance(0.5):
            node.disk.lose_payload(place, self.world.now_ms)
        else:
            node.disk.corrupt[place] = self.world.now_ms

    # --- clocks -------------------------------------------------------------------------------------------

    def skew_of_life(self, node: Node) -> int:
        """Return how far the wall clock of a life that begins is off, in milliseconds (C4).

        One node of all is far off, so a majority of every ensemble is right; where none is, a clock keeps what it has.
        """
        if not self.options.wrong_clock:
            return node.skew_ms
        dice, world = self.world.dice, self.world
        if node.name != self._wrong_clock:
            return dice.between(-SANE_SKEW_MS, SANE_SKEW_MS)
        if self.over or not dice.chance(self.options.wrong_clock):
            return 0
        skew_ms = dice.between(2 * HOUR_MS, WRONG_MS_MAX) * (1 if dice.chance(0.6) else -1)
        world.trace.note(node.name, "clock", f"off by {skew_ms} ms for this life")
        world.trace.count("wrong_clocks")
        return skew_ms

    def clock_jump(self) -> None:
        """Forwards or back, mostly by seconds, sometimes by an hour; an operator's clock only forwards (C6)."""
        world = self.world
        machines: list[Node | Operator] = [*world.nodes.values(), *world.operators.values()]
        one = world.dice.pick(machines)
        span = 3_600_000 if world.dice.chance(0.2) else 5_000
        skew_ms = world.dice.between(-span, span)
        one.skew_ms = max(one.skew_ms, skew_ms) if one.name in world.operators else skew_ms
        world.trace.note(one.name, "clock", str(one.skew_ms))
        world.trace.count("clock_jumps")

    # --- ambushes -----------------------------------------------------------------------------------------

    def saw_record(self, shard: ShardId, before: ShardRecord, after: ShardRecord) -> None:
        """A record was stored: somebody who matters now may fail."""
        world = self.world
        changing = after.change is not None
        if self.over or not world.dice.chance(self.options.ambush * (1.0 if changing else 0.2)):
            return
        dice = world.dice
        victims: list[Node] = []
        if after.leader is not None:
            victims.append(world.nodes[after.leader.node])
        if changing:
            assert after.change is not None
            victims += [world.nodes[m.node] for m in (after.change.old, after.change.new) if m is not None]
        options = self.options
        killing, dying = options.crash or options.crash_leader, options.operator_crash
        delay = dice.between(0, 12) if dice.chance(0.6) else dice.around(40)
        kind = dice.weighted(
            (
                ("operator", dying * (2.0 if changing else 1.0)),
                ("one", killing and 2.0),
                ("several", min(killing, 1.0) * min(dying, 1.0) * (3.0 if changing else 0.5)),
                ("isolate", options.isolate),
                ("lag", options.lag if changing else 0.0),
                ("wipe", options.wipe),
            )
        )
        alive = [operator for operator in world.operators.values() if operator.alive]
        if kind in ("operator", "several") and alive:
            world.after(delay, self._strike_operator, dice.pick(alive))
        if kind == "one":
            world.after(delay, self._strike, dice.pick(victims or list(world.nodes.values())))
        elif kind == "several":
            # The leader and one or two more, just when nobody can finish what was begun.
            others = dice.shuffled([world.nodes[member.node] for member in after.ensemble] + victims[1:])
            for node in [*victims[:1], *others[: dice.between(1, 2)]]:
                world.after(delay + dice.between(0, 10), self._strike, node)
        elif kind == "isolate":
            world.after(delay, self._strike_isolate, dice.pick(victims or list(world.nodes.values())).name)
        elif kind == "lag":
            self._lag(after)
        elif kind == "wipe" and victims:
            world.after(delay, self._strike_wipe, dice.pick(victims))

    def _strike(self, node: Node) -> None:
        if not self.over:
            self.crash(node)

    def _strike_wipe(self, node: Node) -> None:
        if not self.over:
            self.wipe(node)

    def _strike_isolate(self, name: str) -> None:
        if not self.over:
            self.isolate(name)

    def _strike_operator(self, operator: Operator) -> None:
        if not self.over:
            self.operator_crash(operator)

    def saw_rollback(self, node: Node, shard: ShardId, stage: str) -> None:
        """A rollback record is written, durable, acknowledged or confirmed: here, or at the leader, or beside it."""
        world, dice = self.world, self.world.dice
        if self.over or not dice.chance(self.options.ambush_rollback):
            return
        world.trace.count(f"rollbacks_ambushed_{stage}")
        record = world.metadata.record(shard)
        leader = world.nodes[record.leader.node] if record.leader is not None else node
        members = [world.nodes[member.node] for member in record.ensemble]
        delay = dice.between(0, 12)
        match dice.weighted(
            (
                ("die", 2.0), ("leader", 2.0), ("follower", 1.0), ("cut leader", 2.0), ("cut here", 0.5),
                ("settings", 2.0), ("change", 1.0), ("lag", 1.0),
            )
        ):
            case "die":
                node.doomed = True
            case "leader":
                world.after(delay, self._strike, leader)
            case "follower":
                world.after(delay, self._strike, dice.pick(members))
            case "cut leader":
                world.after(delay, self._strike_isolate, leader.name)
            case "cut here":
                world.after(delay, self._strike_isolate, node.name)
            case "settings":
                world.after(delay, self._strike_settings, shard, leader)
            case "change":
                world.after(delay, world.admin.act)
            case "lag":
                self._lag(record)

    def _strike_settings(self, shard: ShardId, node: Node) -> None:
        if not self.over:
            self.world.shard_map.change(shard, at_once=node)
