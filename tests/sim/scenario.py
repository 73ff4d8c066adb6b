"""A directed world: no chance, no faults but those the story asks for; all checkers watch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tidemark_core.base.entry import Durability
from tidemark_core.base.ids import Member, OperatorId, ShardKind
from tidemark_core.base.limits import Limits
from tidemark_core.replication.messages import Appended, Operation
from tidemark_core.replication.records import CoordinatorSettings, ShardRecord, StartChange, StartTransfer, first_record
from tidemark_sim import liveness
from tidemark_sim.clients import Producer
from tidemark_sim.dice import Dice
from tidemark_sim.faults import both_ways
from tidemark_sim.profiles import Options
from tidemark_sim.trace import Trace
from tidemark_sim.world import World


class Scenario:
    """Nodes n1..nN, the first `replicas` of them in the ensemble, in order; operators op1..; one producer."""

    def __init__(
        self, nodes: int = 3, replicas: int = 3, operators: int = 1, copies: int = 0, silence_ms: int = 0,
        documents: int = 0, **limits: int
    ) -> None:
        """Nodes report whom they reach where `silence_ms` is given; with `documents` keys the shard has documents."""
        options = Options("scenario")
        options.cluster.nodes, options.cluster.operators = nodes, operators
        options.cluster.probe_ms, options.cluster.probes_missed_max = 20, 2
        options.network.delay_ms_max = 1
        options.disk.sync_ms_max = 1
        options.metadata.delay_ms_max = options.metadata.watch_delay_ms = 1
        options.clients.producers = 1
        options.clients.raises = options.clients.wrong = 0.0
        options.limits = replace(
            Limits(resend_ms=50, commit_notice_ms=5, documents_notice_ms=5, pull_retry_ms=50, transfer_ms=200), **limits
        )
        options.coordinator = CoordinatorSettings(
            OperatorId(""), retry_ms=50, grace_ms=5, takeover_ms=300, change_timeout_ms=2_000
        )
        if silence_ms:
            options.cluster.reports = options.cluster.hints = 1.0
            options.coordinator = replace(options.coordinator, quorum_silence_ms=silence_ms)
        options.documents.keys = documents
        self.world = world = World(options, Dice(1), Trace())
        self.shard = world.shards[0]
        self.producer: Producer = world.producers[0]
        self.producer.stopped = True
        members = tuple(self.member(n) for n in range(1, replicas + 1))
        kind = ShardKind.DOCUMENTS if documents else ShardKind.LOG
        lineage = world.lineage() if documents else b""
        world.metadata.create(self.shard, first_record(members, copies, lineage, kind))
        for node in world.nodes.values():
            node.start()
        for operator in world.operators.values():
            operator.start()

    # --- looking --------------------------------------------------------------------------------------------

    def member(self, number: int) -> Member:
        return self.world.nodes[f"n{number}"].member

    @property
    def record(self) -> ShardRecord:
        return self.world.metadata.record(self.shard)

    @property
    def leader(self) -> str:
        return self.record.leader.node if self.record.leader else ""

    def log(self, number: int) -> list[str]:
        """Return the ids on a node's disk."""
        return [str(entry.id) for entry in self.world.nodes[f"n{number}"].disk.image(self.shard).entries]

    # --- time -----------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], Any], what: str, patience_ms: int = 5_000) -> None:
        """Let the world run until the condition holds."""
        deadline = self.world.now_ms + patience_ms
        while not condition():
            assert self.world.now_ms < deadline, f"{what}: not within {patience_ms} ms"
            self.world.run_until(self.world.now_ms + 1)

    def run(self, for_ms: int) -> None:
        self.world.run_until(self.world.now_ms + for_ms)

    def wait_led(self, number: int) -> None:
        self.wait(lambda: self.leader == f"n{number}" and self.leads(number), f"n{number} leads")

    def wait_settled(self, operator: str = "op1") -> None:
        """Wait until the operator has nothing left to do for the shard, so that a change may start."""

        def settled() -> bool:
            core = self.world.operators[operator].core
            return core is not None and self.shard in core.shards and core.shards[self.shard].settled

        self.wait(settled, f"{operator} settles")

    def leads(self, number: int) -> bool:
        core = self.world.nodes[f"n{number}"].core
        if core is None or self.shard not in core.log.shards:
            return False
        leader = core.log.shards[self.shard].leader
        return leader is not None and leader.active

    def finish(self) -> None:
        """Mend everything; all must settle and agree."""
        liveness.finish(self.world)

    # --- doing ----------------------------------------------------------------------------------------------

    def crash(self, *numbers: int) -> None:
        for number in numbers:
            self.world.nodes[f"n{number}"].crash()

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self.world.nodes[f"n{number}"].start()

    def cut(self, one: int, other: int) -> None:
        self.world.network.cut_link(f"n{one}", f"n{other}")
        self.world.network.cut_link(f"n{other}", f"n{one}")

    def part(self, pairs: Iterable[tuple[str, str]], noticed: bool = True) -> None:
        """Cut links between nodes, or a node and an operator, in both directions."""
        both = both_ways(list(pairs))
        for pair in both:
            self.world.network.cut_link(*pair)
        if noticed:
            self.world.pairs_changed(both)

    def join(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Mend what `part` cut."""
        both = both_ways(list(pairs))
        for pair in both:
            self.world.network.mend_link(*pair)
        self.world.pairs_changed(both)

    def mend(self, one: int, other: int) -> None:
        pairs = [(f"n{one}", f"n{other}"), (f"n{other}", f"n{one}")]
        for pair in pairs:
            self.world.network.mend_link(*pair)
        self.world.pairs_changed(pairs)

    def append(self, number: int) -> int:
        """Offer a batch to one node; return its sequence."""
        self.producer.turn_to(f"n{number}")
        self.producer.append()
        return self.producer.recent[-1].batch.sequence

    def acknowledged(self, sequence: int) -> bool:
        answer = self.producer.answered.get((self.producer.id, sequence))
        return isinstance(answer, Appended) and answer.durability == Durability.QUORUM

    def change(
        self, operation: Operation, old: int | None, new: int | None, operator: str = "op1", settled: bool = True
    ) -> list[Any]:
        """Ask for a change, once the operator has settled; the list receives the outcome."""
        if settled:
            self.wait_settled(operator)
        outcome: list[Any] = []
        event = StartChange(
            self.shard, self.world.request_number(), operation,
            f"n{old}" if old else None, f"n{new}" if new else None,
        )
        self.world.operators[operator].request(event, outcome.append)
        return outcome

    def transfer(self, to: int, operator: str = "op1") -> list[Any]:
        """Ask for node `to` to lead; the list receives the outcome."""
        outcome: list[Any] = []
        self.world.operators[operator].request(
            StartTransfer(self.shard, self.world.request_number(), f"n{to}"), outcome.append)
        return outcome

    def when_operator_sends(self, kind: type, action: Callable[[], bool]) -> None:
        """Run `action` when an operator first sends a message of this class; the message is lost if it says so."""
        done: list[bool] = []
        send = self.world.send_from_operator

        def watch(operator: Any, effect: Any) -> None:
            if not done and isinstance(effect.message, kind):
                done.append(True)
                if action():
                    return
            send(operator, effect)

        self.world.send_from_operator = watch  # type: ignore[method-assign]

    def when_stored(self, condition: Callable[[ShardRecord], bool], action: Callable[[], None]) -> None:
        """Run `action` the moment a record that fits is stored, once."""
        done: list[bool] = []

        def saw(shard: Any, before: ShardRecord, after: ShardRecord) -> None:
            if not done and condition(after):
                done.append(True)
                action()

        self.world.faults.saw_record = saw  # type: ignore[method-assign]
