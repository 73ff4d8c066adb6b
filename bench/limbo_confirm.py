"""Confirming: what a leader's core spends on entries that leave the limbo, by how many there are.

One core that leads three members and asks for all of them.  One follower has acknowledged everything, so every entry
is committed and waits for the other; then that one's acknowledgement of the last offset arrives, and each writer is
answered.  The followers are messages made here, every persist counts as durable at once.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from typing import Any

from google_crc32c import value as crc32c
from tidemark_core.base.effects import Feed, Persist, Received, Reply, Send
from tidemark_core.base.entry import Batch, Durability
from tidemark_core.base.ids import NOTHING, Member, OperatorId, of_shard, shard_id
from tidemark_core.base.limits import Limits
from tidemark_core.base.plane import NodeFacts
from tidemark_core.limbo.settings import SynchroSettings
from tidemark_core.node import NodeCore
from tidemark_core.planes import planes
from tidemark_core.replication.clients import AppendRequest
from tidemark_core.replication.messages import AppendAck, Appended, BecomeLeader, Fence, Fenced
from tidemark_core.replication.settings import Configure

NUMBERS = (1_000, 2_000, 5_000, 10_000, 20_000)

OPERATOR = OperatorId("bench")
SHARD = shard_id(1, 0)
EPOCH, ELECTION = 1, 1
TURN = 64              # appends a turn, as under load
PAYLOAD_BYTES = 64
NOW_MS = 1_000_000     # one moment: nobody's time runs out


class LoneLeader:
    """A leader whose followers are made up."""

    def __init__(self, entries_max: int) -> None:
        self.me, self.prompt, self.missing = (Member(f"n{number}", f"{number:032x}") for number in range(3))
        limits = Limits(pending_entries_max=entries_max + TURN, pending_bytes_max=1 << 30)
        self.core = NodeCore(NodeFacts(self.me), planes(limits))
        self.replies: list[Any] = []
        self._said: list[Any] = []
        members = (self.me, self.prompt, self.missing)
        self.hear(Received(of_shard(SHARD), OPERATOR, None, Fence(EPOCH, ELECTION)))
        assert isinstance(self._said[-1], Fenced)
        become = BecomeLeader(EPOCH, ELECTION, members, ((self.prompt, NOTHING), (self.missing, NOTHING)))
        self.hear(Received(of_shard(SHARD), OPERATOR, None, become))
        self.hear(Configure(SHARD, SynchroSettings(quorum="N")))
        self.acknowledge(self.prompt)
        self.acknowledge(self.missing)
        assert self.view().confirmed == self.view().head == 0, "the leadership is confirmed"

    def hear(self, *events: Any) -> None:
        """Let the core have events, and what follows from them."""
        inbox = list(events)
        while inbox:
            effects, inbox = self.core.step(NOW_MS, inbox), []
            self._carry(effects, inbox)

    def _carry(self, effects: Iterable[Any], inbox: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self._carry(effect.then, inbox)
                case Feed():
                    inbox.append(effect.event)
                case Reply():
                    self.replies.append(effect.value)
                case Send():
                    self._said.append(effect.message)

    def view(self) -> Any:
        return self.core.log.limbo(SHARD, NOW_MS, 1)

    def acknowledge(self, follower: Member) -> None:
        """A follower holds everything there is."""
        view = self.view()
        self.hear(Received(of_shard(SHARD), follower, self.me, AppendAck(EPOCH, view.head, view.commit)))

    def fill(self, entries: int) -> None:
        """Append QUORUM entries of one record; they are committed, and wait for the missing follower."""
        payload = bytes(PAYLOAD_BYTES)
        crc, producer = crc32c(payload), b"bench-producer-0"
        for start in range(0, entries, TURN):
            self.hear(*(
                AppendRequest(SHARD, number, Batch(producer, number, 1, 0, 0, crc, payload, Durability.QUORUM))
                for number in range(start, min(start + TURN, entries))
            ))
            self._said.clear()
        self.acknowledge(self.prompt)
        view = self.view()
        assert (view.length, view.commit, view.confirmed) == (entries, entries, 0), view
        assert not self.replies


def seconds_to_confirm(entries: int) -> float:
    """Return the processor time from the missing acknowledgement to the last answer."""
    leader = LoneLeader(entries)
    leader.fill(entries)
    gc.collect()
    began = time.process_time()
    leader.acknowledge(leader.missing)
    took = time.process_time() - began
    assert leader.view().length == 0 and len(leader.replies) == entries
    assert all(isinstance(reply, Appended) and reply.durability is Durability.QUORUM for reply in leader.replies)
    return took


def measure(rounds: int) -> dict[int, list[float]]:
    """Return seconds by number of entries, one for each round; the numbers take turns."""
    seconds_to_confirm(NUMBERS[0])  # the first time is dearer for everybody
    found: dict[int, list[float]] = {entries: [] for entries in NUMBERS}
    for _ in range(rounds):
        for entries, times in found.items():
            times.append(seconds_to_confirm(entries))
    return found
