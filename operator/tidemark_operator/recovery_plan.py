"""The plan of a recovery: what to write so that a lost or set back etcd says again what nodes hold.  Pure.

Shard records follow core's rules N1-N8, N13 and N14 (`replication.recovery`).  Around them, with reasons and tests in
`docs/protocols/recovery.md`:

M1  A plan with open questions is not written
M2  A group keeps its id
M3  Counters begin above every number seen
M4  Current data stays as it is

Stays out: asking nodes, writing (`recovery`).
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidemark_core.base.ids import LINEAGE_BYTES, Member, ShardId, group_of, shard_id
from tidemark_core.replication.records import ShardRecord
from tidemark_core.replication.recovery import Doubt, Finding, ReplicaReport, find_record, is_behind, newest_facts
from tidemark_core.replication.replica import Role
from tidemark_wire.v1 import node_pb2

from .condition_memory import timestamp
from .etcd import Snapshot, Write
from .metadata import GROUP_IDS, KEYSPACE_IDS, MAP_TERMS, NODE_IDS, Keys, NodeRecord, StoredObject
from .mirror import Mirror
from .model import node_number
from .resources import API_VERSION, InvalidManifest, LogGroup, Resource, TidemarkCluster, check_update, load_resource


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What a node said of itself and of its replicas; `floors` are the epochs that it promised (N10)."""

    address: str
    pool: str
    member: Member
    zone: str
    location: str
    reports: tuple[ReplicaReport, ...]
    remembered: node_pb2.RememberedCluster
    floors: Mapping[ShardId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SilentNode:
    """A node that was asked and did not answer."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What the person who recovers gave."""

    cluster: str
    manifests: Sequence[Resource] = ()
    names: Mapping[int, str] = field(default_factory=dict)         # of groups that no node remembers
    accepted: Collection[tuple[str, int]] = ()                     # shards whose loss is accepted


@dataclass(frozen=True, slots=True)
class ShardLine:
    """One shard of the plan, for people; `action` is write, keep, empty or refuse."""

    group: str
    index: int
    action: str
    epoch: int
    ensemble: tuple[str, ...]
    doubt: str
    note: str


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One group of the plan; `action` is keep, create, detach or refuse."""

    name: str
    group_id: int
    shards: int
    action: str


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What is to be written, in order, and everything a person should see of it."""

    writes: tuple[Write, ...]
    shards: tuple[ShardLine, ...]
    groups: tuple[GroupLine, ...]
    silent: tuple[str, ...]
    counters: Mapping[str, int]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    floors: Mapping[ShardId, int]   # epochs of the records that are written: what nodes promise first (N10)


@dataclass(frozen=True, slots=True)
class _Group:
    """A log group as nodes, the store or a person know it."""

    group_id: int
    name: str
    shards: int
    kind: str = "Log"


def make_plan(
    answers: Sequence[NodeAnswer], silent: Sequence[SilentNode], snapshot: Snapshot, keys: Keys, asked: Asked
) -> RecoveryPlan:
    """Plan the recovery from what nodes said and what is stored under the key prefix."""
    return _Planner(answers, silent, snapshot, keys, asked).plan()


class _Planner:
    """One plan in the making."""

    def __init__(
        self, answers: Sequence[NodeAnswer], silent: Sequence[SilentNode], snapshot: Snapshot, keys: Keys, asked: Asked
    ) -> None:
        self.answers, self.keys, self.asked, self.snapshot = answers, keys, asked, snapshot
        self.stored = Mirror(keys)
        self.stored.apply(snapshot)
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.writes: list[Write] = []
        self.floors: dict[ShardId, int] = {}
        self.answered = {answer.member for answer in answers}
        self.reports: dict[ShardId, list[ReplicaReport]] = defaultdict(list)
        for answer in answers:
            for report in answer.reports:
                self.reports[report.shard].append(report)
        self.addresses = self._known_addresses()
        self.silent = self._silent(silent)

    def plan(self) -> RecoveryPlan:
        self._check_nodes()
        groups = self._groups()
        lines, sizes = [], {}
        for group in groups:
            found = [self._shard(group, index) for index in range(group.shards)]
            lines += [line for line, _ in found]
            sizes[group.group_id] = Counter(size for _, size in found if size).most_common(1)
        group_lines = [
            self._group(group, sizes[group.group_id][0][0] if sizes[group.group_id] else 3) for group in groups]
        self._cluster()
        self._nodes()
        counters = self._counters(groups)
        # Objects and counters first: a record is of no use to an operator that does not know its group.
        records = [write for write in self.writes if write.key.startswith(f"{self.keys.prefix}/shards/")]
        others = [write for write in self.writes if write not in records]
        if self.silent:
            self.notes.append(
                f"{len(self.silent)} disks did not answer: {', '.join(self.silent)}; elections begin far above what is "
                "known, and whatever else they hold is not in this plan")
        return RecoveryPlan(
            tuple([*others, *records]), tuple(lines), tuple(group_lines), tuple(self.silent), counters,
            tuple(self.problems), tuple(self.notes), self.floors)

    # --- who is there ---------------------------------------------------------------------------------------

    def _known_addresses(self) -> dict[str, str]:
        """Return where nodes are, by name, as those who answered remember it; the newest map counts."""
        found: dict[str, str] = {}
        for answer in sorted(self.answers, key=lambda answer: answer.remembered.map_version):
            found.update((node.node, node.address) for node in answer.remembered.nodes)
        found.update((name, record.address) for name, record in self.stored.nodes.items())
        found.update((answer.member.node, answer.address) for answer in self.answers)
        return found

    def _silent(self, silent: Sequence[SilentNode]) -> list[str]:
        """Return the disks that did not answer (N7): nodes asked in vain, nodes others know, disks that are gone."""
        here = {member.node for member in self.answered}
        term = max((answer.remembered.map_version >> 32 for answer in self.answers), default=0)
        names = {
            node.node for answer in self.answers if answer.remembered.map_version >> 32 == term
            for node in answer.remembered.nodes
        } or set(self.stored.nodes)
        gone = {name for name in names if name not in here}
        at = {address: name for name, address in self.addresses.items()}
        unnamed = [node.address for node in silent if node.address not in at]
        disks: set[Member] = set()
        for shard, reports in self.reports.items():
            facts = newest_facts(reports, self._stored_record(shard))
            disks |= facts.named - self.answered if facts is not None else frozenset()
        wiped = {str(member) for member in disks if member.node in here}
        return sorted(gone | wiped | {member.node for member in disks if member.node not in here}) + sorted(unnamed)

    def _stored_record(self, shard: ShardId) -> ShardRecord | None:
        found = self.stored.shards.get(shard)
        return found.value if found is not None else None

    def _check_nodes(self) -> None:
        if not self.answers:
            self.problems.append("no node answered")
        twice = [name for name, count in Counter(a.member.node for a in self.answers).items() if count > 1]
        self.problems += [f"two addresses are the node {name}: name each once" for name in twice]
        others = {
            answer.remembered.cluster for answer in self.answers
            if answer.remembered.cluster not in ("", self.asked.cluster)}
        self.problems += [
            f"nodes belong to the cluster {other!r}, not to {self.asked.cluster!r}" for other in sorted(others)]
        held = self.stored.cluster
        if held is not None and held.value.name != self.asked.cluster:
            self.problems.append(
                f"{self.keys.prefix} holds the metadata of the cluster {held.value.name!r}, not of "
                f"{self.asked.cluster!r}")

    # --- groups ---------------------------------------------------------------------------------------------

    def _groups(self) -> list[_Group]:
        """Return every group that anybody knows, by id (M2)."""
        known: dict[int, _Group] = {}
        for answer in sorted(self.answers, key=lambda answer: answer.remembered.map_version):
            for group in answer.remembered.groups:
                known[group.group_id] = _Group(group.group_id, group.name, group.shards, group.kind or "Log")
        for number, name in self.asked.names.items():
            if number not in known:
                manifest = self._manifest(name)
                if manifest is None:
                    self.problems.append(f"group {number} is to be {name!r}: give its manifest, it names its shards")
                    continue
                known[number] = _Group(number, name, manifest.spec.shards, manifest.spec.kind)
            elif known[number].name != name:
                self.problems.append(f"group {number} is {known[number].name!r} to the nodes, not {name!r}")
        for name, item in self.stored.groups.items():
            number = item.value.number
            if number in known and known[number].name != name:
                self.problems.append(
                    f"etcd gave the id {number} to the log group {name!r}, nodes hold {known[number].name!r} under it: "
                    "one of the two was made on metadata that was set back; empty the key prefix and recover from "
                    "nodes alone")
            known.setdefault(number, _Group(number, name, item.value.spec["shards"]))
        held = {group_of(shard) for shard, reports in self.reports.items()}
        self.problems += [
            f"nodes hold shards of group {number} and none remembers its name: --group {number}=NAME"
            for number in sorted(held - set(known)) if number not in self.asked.names
        ]
        for number in [number for number in known if self._was_deleted(number)]:
            self.notes.append(
                f"log group {known[number].name}: nobody holds it and the newest map does not have it: it was deleted")
            del known[number]
        names = Counter(group.name for group in known.values())
        self.problems += [f"two groups are called {name!r}" for name, count in names.items() if count > 1]
        return [known[number] for number in sorted(known)]

    def _was_deleted(self, number: int) -> bool:
        """A group without any replica that no newest map names; who is silent might hold it, so all must speak."""
        if self.silent or any(item.value.number == number for item in self.stored.groups.values()):
            return False
        if number in self.asked.names:
            return False
        term = max(answer.remembered.map_version >> 32 for answer in self.answers)
        current = any(
            group.group_id == number and group.current for answer in self.answers
            if answer.remembered.map_version >> 32 == term for group in answer.remembered.groups)
        held = any(
            report.role is not Role.DELETED for shard, reports in self.reports.items() if group_of(shard) == number
            for report in reports)
        return not current and not held

    def _manifest(self, name: str) -> LogGroup | None:
        return next(
            (item for item in self.asked.manifests if isinstance(item, LogGroup) and item.name == name), None)

    def _group(self, group: _Group, factor: int) -> GroupLine:
        stored, manifest = self.stored.groups.get(group.name), self._manifest(group.name)
        if stored is not None:
            return GroupLine(group.name, group.group_id, group.shards, "keep")
        if manifest is not None:
            factor = manifest.spec.replication.factor   # shards that lost members get them back, one after the other
        try:
            held = load_resource({
                "apiVersion": API_VERSION, "kind": "LogGroup", "metadata": {"name": group.name},
                "spec": {
                    "clusterRef": {"name": self.asked.cluster}, "kind": group.kind, "shards": group.shards,
                    "replication": {"factor": factor},
                },
            }, "recovered group")
            if manifest is not None:
                # Nodes know groups by name alone.
                check_update(held.in_namespace(manifest.namespace), manifest, "manifest")
        except InvalidManifest as error:
            self.problems.append(f"LogGroup/{group.name}: {error}")
            return GroupLine(group.name, group.group_id, group.shards, "refuse")
        written = manifest if manifest is not None else held
        made = StoredObject(
            written.manifest(), str(uuid.uuid4()), timestamp(), number=group.group_id, detached=manifest is None)
        self.writes.append(Write(self.keys.object("LogGroup", group.name), made.encode(), 0))
        if manifest is None:
            self.notes.append(f"log group {group.name}: apply its manifest to serve it again; its data is kept")
        return GroupLine(group.name, group.group_id, group.shards, "detach" if manifest is None else "create")

    # --- shards ---------------------------------------------------------------------------------------------

    def _shard(self, group: _Group, index: int) -> tuple[ShardLine, int]:
        """Plan one shard; return it with the size of its ensemble, 0: none."""
        shard = shard_id(group.group_id, index)
        stored = self.stored.shards.get(shard)
        if stored is None and shard in self.stored.tombstones:
            return ShardLine(group.name, index, "keep", 0, (), "", "being deleted"), 0
        reports = self.reports.get(shard, [])
        accept = (group.name, index) in self.asked.accepted
        found = find_record(
            shard, reports, self.answered, len(self.silent), stored=stored.value if stored else None, accept=accept,
            floor=max((answer.floors.get(shard, 0) for answer in self.answers), default=0),
            lineage=secrets.token_bytes(LINEAGE_BYTES))
        record = found.record
        if record is not None:
            self.floors[shard] = record.epoch
            self.writes.append(Write(self.keys.shard(shard), record.encode(), stored.revision if stored else 0))
        return self._line(group, index, found, stored.value if stored else None), (
            len(record.ensemble) if record else len(stored.value.ensemble) if stored else 0)

    def _line(self, group: _Group, index: int, found: Finding, stored: ShardRecord | None) -> ShardLine:
        record = found.record
        if record is not None:
            action = "write"
        elif found.doubt is None:
            action, record = "keep", stored
        elif found.doubt is Doubt.NO_COPY and found.accepted:
            action = "empty"
        else:
            action = "refuse"
            why = _MEANING[found.doubt] + (f"; {found.note}" if found.note else "")
            remedy = "bring nodes back"
            if (group.name, index) not in self.asked.accepted:
                remedy += f", or give it up with --accept-loss {group.name}/{index}"
            if found.doubt is Doubt.EPOCH_JUMP:
                remedy = "stop the node that reports it"
            self.problems.append(f"{group.name}/{index}: {why} ({found.doubt}); {remedy}")
        return ShardLine(
            group.name, index, action, record.epoch if record else 0,
            tuple(member.node for member in record.ensemble) if record else (), found.doubt or "", found.note)

    # --- the rest -------------------------------------------------------------------------------------------

    def _cluster(self) -> None:
        manifest = next((item for item in self.asked.manifests if isinstance(item, TidemarkCluster)), None)
        if manifest is None or self.stored.cluster is not None:
            return
        made = StoredObject(manifest.manifest(), str(uuid.uuid4()), timestamp())
        self.writes.append(Write(self.keys.object("TidemarkCluster", ""), made.encode(), 0))

    def _nodes(self) -> None:
        """Records of the nodes that answered, and of those that others remember: they may come back."""
        places = {
            node.node: node for answer in sorted(self.answers, key=lambda a: a.remembered.map_version)
            for node in answer.remembered.nodes}
        records = {
            name: NodeRecord(name, address, places[name].zone, location=places[name].location)
            for name, address in self.addresses.items() if name in places and name in self.silent}
        records.update(
            (answer.member.node,
             NodeRecord(answer.member.node, answer.address, answer.zone, answer.pool, answer.location))
            for answer in self.answers)
        for name, record in sorted(records.items()):
            known, item = self.stored.nodes.get(name), self.snapshot.items.get(self.keys.node(name))
            if known is not None:
                record = replace(record, pool=known.pool)
            if known != record:
                self.writes.append(Write(self.keys.node(name), record.encode(), item.revision if item else 0))

    def _counters(self, groups: Sequence[_Group]) -> dict[str, int]:
        """Rule M3."""
        names = {*self.addresses, *(member.node for member in self.answered)}
        for reports in self.reports.values():
            names |= {member.node for report in reports for member in report.ensemble}
        terms = [answer.remembered.map_version >> 32 for answer in self.answers]
        held = [group_of(shard) for shard in self.reports]
        wanted = {
            NODE_IDS: max(map(node_number, names), default=0) + 1,
            GROUP_IDS: max([group.group_id for group in groups] + held, default=0) + 1,
            MAP_TERMS: max(terms, default=0) + 1,
            KEYSPACE_IDS: int(time.time()) // 60,   # nodes do not say which they hold: more than were ever made
        }
        found = {}
        for name, number in wanted.items():
            before = self.stored.counters.get(name, 0)
            found[name] = max(before, number)
            if number > before:
                item = self.snapshot.items.get(self.keys.counter(name))
                self.writes.append(
                    Write(self.keys.counter(name), str(number).encode(), item.revision if item else 0))
        return found


_MEANING = {
    Doubt.NO_COPY: "no node that answered has a replica",
    Doubt.NO_MAJORITY: "fewer than a majority of its members answered",
    Doubt.NEWER_POSSIBLE: "the disks that did not answer may hold a newer ensemble",
    Doubt.CHANGE_IN_DOUBT: "a change may be in force; its new member is silent, or only some members keep each payload",
    Doubt.UNKNOWN_CHANGE: "an older release led it and did not note what was being changed",
    Doubt.EPOCH_JUMP: "a replica reports an epoch that is more than 2^32 above the others, or too high to go on",
}


def unpromised(plan: RecoveryPlan, answers: Sequence[NodeAnswer]) -> tuple[ShardId, ...]:
    """Return the shards of which a node that counts did not promise an epoch above all that are reported (N10)."""
    highest: dict[ShardId, int] = defaultdict(int)
    for answer in answers:
        for report in answer.reports:
            highest[report.shard] = max(highest[report.shard], report.epoch)
    return tuple(
        shard for shard in plan.floors
        if any(answer.floors.get(shard, 0) <= highest[shard] for answer in answers))


def records_behind(
    reports: Sequence[ReplicaReport], records: Mapping[ShardId, ShardRecord]
) -> tuple[ReplicaReport, ...]:
    """Return reports that the records know nothing of: a newer promise, or a replica of a shard without a record."""
    return tuple(report for report in reports if is_behind(records.get(report.shard), [report]))

