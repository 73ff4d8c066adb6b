"""The world of one run: everything that takes part in it, and the two phases of a run.

First everything may break and safety is judged after every step; then faults stop and liveness is judged.
Stays out: what happens at an event; the parts know.
"""

from __future__ import annotations

from typing import Any

from tidemark_core.base.effects import PeerDown, PeerUp, Send
from tidemark_core.base.ids import LINEAGE_BYTES, Member, ShardId, ShardKind, shard_id
from tidemark_core.replication.messages import Reach, ReadRound
from tidemark_core.replication.records import first_record

from .admin import Admin
from .checkers import Checkers
from .clients import Producer, Readers
from .crowd import Crowd
from .delivery import Readings
from .dice import Dice
from .document_clients import DocumentClients
from .faults import Faults
from .impostor import Impostor, candidates
from .metadata import MetadataStore
from .network import Network
from .node import Node
from .operators import Operator
from .profiles import Options
from .shard_map import ShardMap
from .sinks import SinkJob
from .subscribers import Subscriber
from .successors import Successors
from .timeline import Timeline
from .trace import Trace


class World(Timeline):
    """Everything of one run."""

    def __init__(self, options: Options, dice: Dice, trace: Trace, extra_checkers: tuple[Any, ...] = ()) -> None:
        super().__init__(dice, trace)
        self.options = options
        self._lineages = 0
        self._told_down: dict[tuple[str, str], bool] = {}
        cluster = options.cluster
        self.shards = [shard_id(1, index) for index in range(cluster.shards)]
        self.nodes = {f"n{number}": Node(self, f"n{number}") for number in range(1, cluster.nodes + 1)}
        self.operators = {f"op{number}": Operator(self, f"op{number}") for number in range(1, cluster.operators + 1)}
        self.before_rounds = frozenset(name for name in self.nodes if dice.chance(cluster.before_rounds))
        self.network = Network(options.network, dice, self.after, lambda: self.now_ms)
        self.metadata = MetadataStore(self, options.metadata)
        self.shard_map = ShardMap(self)
        self.checkers = Checkers(self, extra_checkers)
        self.readers = Readers(self)
        self.producers = [
            Producer(self, f"p{number + 1}", dice.pick(self.shards)) for number in range(options.clients.producers)
        ]
        self.retired: list[Producer] = []   # replaced by others when entries were given up (K14e)
        self.subscribers = [
            Subscriber(self, f"s{number + 1}", dice.pick(self.shards)) for number in range(options.clients.subscribers)
        ]
        self.sinks = [
            SinkJob(self, f"k{number + 1}", dice.pick(self.shards)) for number in range(options.clients.sinks)
        ]
        self.crowd = Crowd(self)
        self.readings = Readings(self)
        self.documents = DocumentClients(self)
        self.admin = Admin(self)
        self.faults = Faults(self)
        self.successors = Successors(self)
        self.impostor = Impostor(self) if options.impostor.every_ms else None

    def succeed(self, former: Producer) -> None:
        """Let another process claim a producer, beside the one that has it (L26)."""
        name = f"{former.name.partition('+')[0]}+{len(self.producers)}"
        self.producers.append(Producer(self, name, former.shard, former))
        self.after(self.dice.between(0, 60), self.producers[-1].tick)

    def lineage(self) -> bytes:
        """Return a lineage that no shard had before."""
        self._lineages += 1
        return self._lineages.to_bytes(LINEAGE_BYTES, "big")

    # --- the phases ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Store the shards' first records, start everybody, let clients and faults loose."""
        for shard in self.shards:
            chosen = self.dice.shuffled(candidates(self, shard))[: self.options.replicas]
            members = tuple(self.nodes[name].member for name in chosen)
            kind = ShardKind.DOCUMENTS if self.options.documents.keys else ShardKind.LOG
            lineage = self.lineage() if kind is ShardKind.DOCUMENTS else b""
            self.metadata.create(shard, first_record(members, self.options.payload_copies, lineage, kind))
        if not self.dice.chance(self.options.cluster.all_active):
            for operator in list(self.operators.values())[1:]:
                operator.active = False
        for node in self.nodes.values():
            node.start()
        for operator in self.operators.values():
            self.after(self.dice.between(0, 20), operator.start)
        for producer in self.producers:
            self.after(self.dice.between(0, 60), producer.tick)
        for subscriber in self.subscribers:
            self.after(self.dice.between(0, 60), subscriber.tick)
        for sink in self.sinks:
            self.after(self.dice.between(0, 60), sink.tick)
        self.after(self.dice.between(50, 300), self.admin.tick)
        self.after(self.dice.between(50, 200), self.faults.tick)
        if self.options.synchro.change_every_ms:
            self.after(self.dice.around(self.options.synchro.change_every_ms), self.shard_map.tick)
        self.readings.begin()
        if self.impostor is not None:
            self.after(self.dice.between(50, 200), self.impostor.tick)
        self.documents.begin()
        self.crowd.begin()

    # --- links --------------------------------------------------------------------------------------------

    def send_from_node(self, node: Node, effect: Send) -> None:
        to = effect.to
        if self.impostor is not None:
            self.impostor.overhears(effect, node)
        if isinstance(to, Member):
            if effect.message.__class__ is ReadRound and to.node in self.before_rounds:
                return   # as the link to a member of wire version 4 leaves it out
            target = self.nodes[to.node]
            self.network.send(
                node.name, to.node, target.receive, effect.address, node.member, to, effect.message
            )
        else:
            operator = self.operators[to.split(".")[0]]
            self.network.send(
                node.name, operator.name, operator.receive, effect.address, node.member, to, effect.message,
                node.boot,
            )

    def send_from_operator(self, operator: Operator, effect: Send) -> None:
        to = effect.to
        assert isinstance(to, Member), "operators speak to nodes only"
        if self.impostor is not None:
            self.impostor.overhears(effect, None)
        target = self.nodes[to.node]
        self.network.send(
            operator.name, to.node, target.receive, effect.address, operator.id, to, effect.message
        )

    def report(self, node: Node, reach: Reach) -> None:
        """Have every operator that the node is linked with hear whom it reaches (O43)."""
        for operator in self.operators.values():
            self.network.send(node.name, operator.name, operator.hear, node.member, node.boot, reach)

    def links_changed(self, name: str) -> None:
        """A node came or went: those linked to it will notice, and it starts with a fresh view."""
        for other in self.nodes:
            if other != name:
                self._told_down.pop((name, other), None)
                self._notice_later(other, name)
                if self.options.cluster.reports:
                    self._notice_later(name, other)   # it makes a link with everybody, also without a word to say

    def pairs_changed(self, pairs: list[tuple[str, str]]) -> None:
        """Links were cut or mended: a session has two directions and breaks with either."""
        for source, target in pairs:
            if source in self.nodes and target in self.nodes:
                self._notice_later(source, target)
                self._notice_later(target, source)

    def links_timed_out(self, pairs: list[tuple[str, str]]) -> None:
        """A link that carries nothing is given up by both ends at last: a node's links are kept alive."""
        for observer, peer in pairs:
            if observer in self.nodes and peer in self.nodes:
                self._notice(observer, peer, surely=True)

    def all_links_changed(self) -> None:
        """Everybody connects anew."""
        self.pairs_changed([(source, target) for source in self.nodes for target in self.nodes if source < target])

    def _notice_later(self, observer: str, peer: str) -> None:
        self.after(self.dice.between(1, self.options.cluster.notice_ms_max), self._notice, observer, peer)

    def _notice(self, observer: str, peer: str, surely: bool = False) -> None:
        """Tell the observer how its link to the peer stands.

        Going down may pass unnoticed; a link that was made again is always told, because a stream that broke
        starts over.
        """
        self.idle()
        node = self.nodes[peer]
        life = self.nodes[observer].life
        if node.alive and self.network.is_open(observer, peer) and self.network.is_open(peer, observer):
            self._told_down.pop((observer, peer), None)
            self.nodes[observer].hint(PeerUp(node.member), life)
        elif (observer, peer) not in self._told_down and (surely or self.dice.chance(self.options.cluster.hints)):
            self._told_down[observer, peer] = True
            self.nodes[observer].hint(PeerDown(node.member), life)


def shard_name(shard: ShardId) -> str:
    return f"{shard >> 32}/{shard & 0xFFFF_FFFF}"
