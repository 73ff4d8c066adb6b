"""The end of a run: faults have stopped, so everything that was begun must finish, and soon.

All unanswered appends commit, changes complete or abort, every shard has one leader that every member has caught
up with, readers have everything and are served by all members, wiped nodes are back in their slots, damaged copies are
repaired when somebody meets them.
Stays out: safety; the checkers go on judging it here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemark_core.base.effects import LogReadFailed
from tidemark_core.base.entry import Durability, Kind
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.base.quorum import majority
from tidemark_core.replication.ensembles import changed_ensemble
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.producer_ids import caller_of, fence_of
from tidemark_core.replication.reach import STABLE_WAITS, WAIT_SILENCES_MAX
from tidemark_core.replication.records import Phase, Status
from tidemark_core.replication.replica import Role
from tidemark_core.shard import Shard

from . import full_disks, partitions, slow_members
from .checkers.fates import covered_by
from .clients import GENERATION
from .faults import both_ways
from .trace import Violation
from .world import shard_name

if TYPE_CHECKING:
    from .clients import Producer
    from .world import World

PATIENCE_MS = 30_000
LOOK_MS = 100
APPENDS_MAX = 100   # one of seven members is the first of a copyset in one of seven: 30 pass it over in 1 % of runs
WHILE_CUT_MS, WHILE_CUT_SILENCES = 3_000, 20
ELECTIONS_MAX = 6
EXPIRED_MS = 1_000   # so long after its time an expired document may be there


def finish(world: World) -> None:
    """Stop all faults, wait for the world to settle, append once more, and compare everything.

    In half of the runs a minority stays down at first: those that are up must do without it.
    """
    world.admin.stopped = True
    world.readings.stop()
    for producer in world.producers:
        producer.stopped = True
    for subscriber in world.subscribers:
        subscriber.stopped = True
    for sink in world.sinks:
        sink.stopped = True
    world.documents.stopped = True
    world.crowd.over = True
    while world.metadata.lost:   # its recovery may leave other ensembles
        world.run_until(world.now_ms + LOOK_MS)
    absent = _minority(world) if world.dice.chance(0.5) else []
    world.faults.calm(absent)
    if absent:
        world.trace.count("runs_without_minority")
        _wait_for_appends(world, f"without {', '.join(absent)}")
        world.faults.calm()
    _wait(world, "after faults stopped")
    if world.options.cluster.reports:
        _while_cut(world)
    for producer in world.producers:
        producer.append()
    _wait(world, "after one more append")
    if world.options.clients.latest:
        _wait_for_latest(world)
    _wait_for_senders(world)
    slow_members.watch(world)
    _wait(world, "after a slow member")
    full_disks.watch(world)
    _wait(world, "after full disks")
    for shard in world.shards:
        _compare(world, shard)
        fates = world.checkers.history.fates.of(shard)
        world.trace.count("rollbacks_lost", sum(base not in fates.definite for _, base in fates.rollbacks))


def _minority(world: World) -> list[str]:
    """Choose nodes that every shard can do without: a majority of the old and of the final ensemble is up."""
    absent: list[str] = []
    for name in world.dice.shuffled(list(world.nodes)):
        down = [*absent, name]
        if all(_can_do_without(world, shard, down) for shard in world.shards):
            absent = down
            if world.dice.chance(0.3):
                break
    return absent


def _can_do_without(world: World, shard: ShardId, down: list[str]) -> bool:
    record = world.metadata.record(shard)
    change = record.change
    ensembles = [] if change and change.phase is Phase.COMMIT else [record.ensemble]
    if change is not None:
        ensembles.append(changed_ensemble(record.ensemble, change))
    if change is not None and change.operation is Operation.CONTRACT:
        ensembles.append(record.ensemble)
    return all(
        sum(1 for member in ensemble if member.node not in down and _is_whole(world, shard, member))
        >= majority(len(ensemble))
        for ensemble in ensembles
    )


def _is_whole(world: World, shard: ShardId, member: Member) -> bool:
    """A lost disk or replica is gone, and a damaged copy may need just the one that is down."""
    node = world.nodes[member.node]
    return not node.lost(member, shard) and not any(place[0] == shard for place in node.disk.corrupt)


def _wait_for_appends(world: World, when: str) -> None:
    """Everything unanswered must be answered; nothing is said of those that are down."""
    deadline = world.now_ms + PATIENCE_MS
    while any(producer.outstanding for producer in world.producers) or world.readings.behind():
        if world.now_ms >= deadline:
            facts = [fact for shard in world.shards for fact in _unmet(world, shard)]
            facts = [*world.readings.behind(), *facts]
            raise Violation("liveness", f"{PATIENCE_MS / 1000:.0f} s {when}: appends wait; {'; '.join(facts[:6])}")
        world.run_until(world.now_ms + LOOK_MS)


def _wait(world: World, when: str) -> None:
    deadline = world.now_ms + PATIENCE_MS
    while True:
        if world.options.faults.lose_disks:
            world.admin.accept_losses()
        world.run_until(world.now_ms + LOOK_MS)
        unmet = [fact for shard in world.shards for fact in _unmet(world, shard)]
        unmet += [
            f"{producer.name} waits for {sorted(producer.outstanding)}" for producer in world.producers
            if producer.outstanding
        ]
        unmet += world.readings.behind()
        if not unmet:
            return
        if world.now_ms >= deadline:
            raise Violation("liveness", f"{PATIENCE_MS / 1000:.0f} s {when}: {'; '.join(unmet[:6])}")


def _while_cut(world: World) -> None:
    """O44: while some links are cut and a member still reaches a majority, appends are answered, and soon.

    The cut is drawn for the first shard.  Of another shard an answer is due where the cut leaves it such a member.

    Soon counts from when nodes know which links they lost.  As long as a link looks whole that carries nothing, an
    election may be for a member that reaches no other; so where appends wait, such links time out and the time begins.
    """
    [shard, *_] = world.shards
    silence_ms = world.options.coordinator.quorum_silence_ms
    # The waits that operators learnt from the faults are over.
    world.run_until(world.now_ms + STABLE_WAITS * WAIT_SILENCES_MAX * silence_ms)
    before = world.metadata.record(shard)
    assert before.leader is not None
    names = [member.node for member in before.ensemble]
    if len(names) < 2:
        return   # a member alone has no links to cut
    operator = next(operator.name for operator in world.operators.values() if operator.active)
    partition = partitions.draw(world.dice, names, before.leader.node, operator)
    world.trace.count(f"partial {partition.name}")
    elections_max = ELECTIONS_MAX
    for pairs in filter(None, (partition.first, partition.cut)):
        cut = both_ways(pairs)
        for pair in cut:
            world.network.cut_link(*pair)
        world.trace.note("net", "cut", f"{partition.name}: {pairs}")
        world.pairs_changed(cut)
        due = [producer for producer in world.producers if reaches_a_majority(world, producer.shard, pairs, operator)]
        while_ms = WHILE_CUT_MS + WHILE_CUT_SILENCES * silence_ms
        when = f"while cut ({partition.name}: {pairs})"
        known = world.options.cluster.hints >= 1
        if not _append_while_cut(world, due, when, while_ms, known):
            world.trace.count("cut_links_timed_out")
            world.links_timed_out(cut)
            elections_max += ELECTIONS_MAX
            _append_while_cut(world, due, f"{when}, all known", while_ms)
    after = world.metadata.record(shard)
    elections = after.epoch - before.epoch
    needless = before.leader.node in partitions.reaching(names, partition.cut, operator)
    if elections > (0 if needless else elections_max):
        raise Violation("O44", f"{elections} elections while cut ({partition.name}: {partition.cut})")
    for pairs in (partition.first, partition.cut):
        for pair in both_ways(pairs):
            world.network.mend_link(*pair)
        world.pairs_changed(both_ways(pairs))
    _wait(world, "after a partial partition")


def reaches_a_majority(world: World, shard: ShardId, cut: partitions.Pairs, operator: str) -> bool:
    """Say whether a member of the shard reaches a majority of its ensemble and the operator does not miss it."""
    members = [member.node for member in world.metadata.record(shard).ensemble]
    return bool(partitions.reaching(members, cut, operator))


def _append_while_cut(
    world: World, due: Sequence[Producer], when: str, patience_ms: int, must: bool = True,
) -> bool:
    """Append once and wait for the answers that are due; False when they do not come in time though they need not."""
    for producer in world.producers:
        producer.append()
    deadline = world.now_ms + patience_ms
    while any(producer.outstanding for producer in due):
        if world.now_ms >= deadline:
            if not must:
                return False
            facts = [fact for shard in dict.fromkeys(one.shard for one in due) for fact in _unmet(world, shard)]
            raise Violation("O44", f"{patience_ms} ms {when}: appends wait; {'; '.join(facts[:6])}")
        world.run_until(world.now_ms + LOOK_MS)
    return True


def _wait_for_latest(world: World) -> None:
    """O46: where the log ends is said again, by whatever members know of rounds; a refusal or a loss is asked again."""
    world.readers.ends.clear()
    deadline = world.now_ms + PATIENCE_MS
    while (unsaid := [shard for shard in world.shards if shard not in world.readers.ends]):
        if world.now_ms >= deadline:
            names = ", ".join(map(shard_name, unsaid))
            raise Violation("liveness", f"{PATIENCE_MS / 1000:.0f} s: no leader says where {names} ends")
        for shard in unsaid:
            world.readers.latest(shard)
        world.run_until(world.now_ms + world.options.limits.read_index_ms + LOOK_MS)


def _wait_for_senders(world: World) -> None:
    """S16, S21: every member that sends again is heard again, once it has something to send."""
    for _ in range(APPENDS_MAX):
        if not world.readings.failed_over():
            return
        for producer in world.producers:
            producer.append()
        _wait(world, "after appends for readers")
    raise Violation("S16", f"after {APPENDS_MAX} more appends {'; '.join(world.readings.failed_over()[:6])}")


def _unmet(world: World, shard: ShardId) -> list[str]:
    """Return what is not yet as it must end, as facts."""
    record = world.metadata.record(shard)
    name = f"shard {shard_name(shard)}"
    if record.status is not Status.STEADY or record.leader is None or record.change is not None:
        return [f"{name} is in {record.status} of epoch {record.epoch}"]
    if record.refill > len(record.ensemble):
        return [f"{name} has {len(record.ensemble)} members and had {record.refill}"]
    for member in record.removed:
        if world.nodes[member.node].member == member:
            return [f"{name} never deletes the replica of {member}"]
    for member in record.ensemble:
        if world.nodes[member.node].member != member:
            return [f"{name} still counts {member}, whose disk is gone"]
    leading = [
        node.name
        for node in world.nodes.values()
        if node.core and shard in node.core.log.shards and node.core.log.shards[shard].leader is not None
    ]
    if leading != [record.leader.node]:
        return [f"{name} is led by {leading or 'nobody'}, the record says {record.leader.node}"]
    leader = world.nodes[record.leader.node]
    assert leader.core is not None
    theirs = leader.core.log.shards[shard]
    assert theirs.leader is not None
    if theirs.leader.ensemble != record.ensemble or theirs.leader.change is not None:
        return [f"{name}: the leader's ensemble or change is not the record's"]
    damaged = [base for where, base in leader.disk.corrupt if where == shard]
    for base in damaged:
        # Somebody reads it all in the end; the shell reports what it meets.
        leader.feed(leader.life, LogReadFailed(shard, None, base))
    if damaged:
        return [f"{name}: entries {damaged} of the leader are damaged"]
    head, commit = theirs.replica.log.head, theirs.replica.commit
    if commit != head.offset or theirs.replica.confirmed != commit:
        return [f"{name}: confirmed is {theirs.replica.confirmed}, commit {commit}, head {head}"]
    if (late := _expired(world, shard, theirs)) is not None:
        return [f"{name} still shows {late}"]
    facts: list[str] = []
    for member in record.ensemble:
        node = world.nodes[member.node]
        held = node.core.log.shards.get(shard) if node.core else None
        theirs_are = (head, commit, commit)
        if held is None or (held.replica.log.head, held.replica.commit, held.replica.confirmed) != theirs_are:
            has = f"head {held.replica.log.head}, commit {held.replica.commit}, " if held else "nothing"
            has += f"confirmed {held.replica.confirmed}" if held else ""
            facts.append(f"{name}: {member.node} has {has}, the leader head {head}, all confirmed")
        elif node.disk.image(shard).last != head.offset:
            facts.append(f"{name}: {member.node} has durable {node.disk.image(shard).last} of {head}")
        elif held.replica.state.role not in (Role.FOLLOWER, Role.LEADER):
            facts.append(f"{name}: {member.node} is {held.replica.state.role}")
        elif held.documents is not None and held.documents.durable != commit:
            facts.append(f"{name}: {member.node} has folded up to {held.documents.durable} of {commit}")
    return facts or world.checkers.copies.kept_for_nobody(shard, record)


def _expired(world: World, shard: ShardId, leading: Shard) -> str | None:
    """Return a document that the leader should have expired, None when there is none (U51)."""
    if leading.documents is None or leading.leader is None:
        return None
    stamp_ms = leading.leader.clocks.next_stamp(leading.replica.now_ms)
    return next(
        (f"{key!r}, which expired {stamp_ms - version.expires_at_ms} ms ago" for key, version in
         world.checkers.documents.models[shard].state.documents.items()
         if 0 < version.expires_at_ms < stamp_ms - EXPIRED_MS), None)


def _compare(world: World, shard: ShardId) -> None:
    """Read everything back from the leader: nothing lost, nothing twice, every copy the same."""
    record = world.metadata.record(shard)
    history = world.checkers.history.of(shard)
    assert record.leader is not None
    leader = world.nodes[record.leader.node]
    assert leader.core is not None
    first = leader.core.log.shards[shard].replica.log.first
    entries, damaged = leader.disk.read(shard, first, history.last, 1 << 40)
    if damaged is not None:
        raise Violation("liveness", f"entry {damaged} of {leader.name} is still damaged")
    expected = [entry.chain for entry in history.entries if entry.base >= first]
    if [entry.chain for entry in entries] != expected:
        raise Violation("NoLossOfConfirmedWrite", f"{leader.name} reads back {len(entries)} of {len(expected)} entries")
    for member in record.ensemble:
        node = world.nodes[member.node]
        assert node.core is not None
        image = node.disk.image(shard)
        # A copy may begin later than the leader's: trimming that an older leader allowed.
        begin = max(first, node.core.log.shards[shard].replica.log.first)
        copy = [entry.chain for entry in image.entries[image.position(begin):]]
        wanted = [entry.chain for entry in history.entries if entry.base >= begin]
        if copy != wanted:
            has = f"{len(copy)} of {len(wanted)} entries from {begin} on"
            raise Violation("NoLogDivergence", f"the log of {member.node} is not the leader's: {has}")
    world.checkers.copies.all_kept(shard, record)
    _compare_outcomes(world, shard)


def _compare_outcomes(world: World, shard: ShardId) -> None:
    """What producers were told is what the log says: there and visible, or rolled back; LOCAL may be gone."""
    history = world.checkers.history.of(shard)
    hidden = covered_by(history.entries, history.last)
    stored = {(entry.producer, entry.sequence): entry for entry in history.entries if entry.kind is Kind.DATA}
    items: dict[bytes, tuple[int, int]] = {}
    of_claims: Counter[tuple[bytes, int]] = Counter()
    callers = {caller_of(producer.id) for producer in world.producers}   # those of a crowd number no batches
    seen: set[tuple[bytes, int]] = set()
    numbers = world.checkers.history.fates.of(shard).numbers   # the copy at hand may keep the header alone
    immediate = world.options.synchro.immediate
    for entry in history.entries:
        if entry.kind is Kind.DATA and entry.base not in hidden:
            item = numbers[entry.epoch, entry.base]
            fence = fence_of(entry.sequence)
            if (fence, item) <= items.get(entry.producer, (0, -1)) and not immediate:
                raise Violation("L22", f"batch {item} at {entry.id} lies behind {items[entry.producer]}")
            items[entry.producer] = fence, item
            if fence:
                if item % GENERATION != of_claims[entry.producer, fence] and not immediate:
                    raise Violation("L28", f"batch {item} at {entry.id} is not the next one of its claim")
                of_claims[entry.producer, fence] += 1
            caller = caller_of(entry.producer)
            if caller in callers and (caller, item) in seen and not immediate:
                raise Violation("exactly once", f"batch {item} at {entry.id} is there under another producer id, too")
            seen.add((caller, item))
    for producer in (*world.producers, *world.retired):
        if producer.shard != shard:
            continue
        for key, answer in producer.answered.items():
            stored_as = stored.get(key)
            if stored_as is None or stored_as.base in hidden:
                if answer.durability == Durability.QUORUM:
                    raise Violation("NoLossOfConfirmedWrite", f"{producer.name}/{key[1]} is lost")
            elif stored_as.payload_crc != producer.batches[key].payload_crc and not immediate:
                raise Violation("NoLossOfConfirmedWrite", f"{producer.name}/{key[1]} holds another payload")
        for key in () if immediate else producer.rolled_back:
            stored_as = stored.get(key)
            if stored_as is not None and stored_as.base not in hidden:
                raise Violation("L8", f"{producer.name}/{key[1]} was called rolled back, and is there")
