"""Checkers: one promise a file, each told what happened and looking only at what changed.

A checker defines any of the hooks below; `Checkers` calls every checker that has one.  They see disks, messages
and records, not what a core believes of itself, except for its role, epoch and watermarks.
Stays out: liveness (`tidemark_sim.liveness`), which is judged once, at the end.

Hooks, each with the thing that happened:
node_started(node)  node_crashed(node)  node_wiped(node)  node_stepped(node, events)
node_writes(node, shard, image, write)  before each write joins the node's written image
node_synced(node, item)                 after a queued write became durable, before its effects run
node_sends(node, send)  node_released(node, released)
floors_asked(floors)  node_promised(node, floors)   nodes are asked for promises, and one is answered
latest_asked(event)                     a client is about to ask where the log ends
documents_asked(event)                  a client is about to read documents
node_wrote(node, shard, written)  node_replied(node, event, value)   a request about documents is answered
node_asked(node, event)                 a client's request arrives
node_replies(node, shard, reply)  node_answers(node, event, value)   it is answered
record_saved(shard, before, after)  operator_sends(operator, send)  operator_stepped(operator)
operator_answered(operator, event, effects)   before the effects of an answer run
operator_resumes(operator, shard)        it goes on from the record alone
producer_answered(producer, sequence, appended)
loss_accepted(shard, before, source, lost)   a survivor begins alone; `lost` are committed entries that it lacks
committed(shard, node, entry)           an entry is seen committed for the first time
led(shard, node, epoch)                 a node is seen leading a new epoch
reader_begins(client, first)  reader_delivers(client, deliver)  reader_passes(client, gap)  reader_notes(client, note)
reader_stepped(client)                  after the effects of one step of a reader
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.ids import ShardId

from .acks import Acks
from .ages import Ages
from .commit import CommitMonotone
from .confirmed import NoLossOfConfirmedWrite
from .coordination import Coordination
from .copies import Copies
from .delivered import Delivered
from .divergence import NoLogDivergence
from .documents import Documents
from .ensemble import LegalLeaderAndEnsemble
from .epochs import Epochs
from .expecting import Expecting
from .fates import Fates
from .fencing import Fencing
from .history import History
from .holds import HoldsWhileHandingOver
from .inside import CoreInvariants
from .latest import LatestIsLinearizable
from .leaders import OneLeaderPerEpoch
from .outcomes import Outcomes
from .positions import Positions
from .producers import ExactlyOnce
from .reads import PrefixReads
from .remembered import Remembered
from .replies import Replies
from .sinks import SinksAreWhole
from .space import SpaceForAppends
from .survivors import Survivors
from .watermarks import Watermarks

if TYPE_CHECKING:
    from ..world import World

HOOKS = (
    "node_started", "node_crashed", "node_wiped", "node_stepped", "node_writes", "node_synced", "node_sends",
    "node_asked", "floors_asked", "node_promised", "node_replies", "node_answers", "node_released", "record_saved",
    "operator_sends", "operator_stepped", "producer_answered", "committed", "led", "reader_begins", "reader_delivers",
    "reader_passes", "reader_notes", "reader_stepped", "latest_asked", "operator_answered", "operator_resumes",
    "node_wrote", "node_replied", "documents_asked", "loss_accepted",
)

PROMISES = (
    NoLogDivergence, CommitMonotone, OneLeaderPerEpoch, NoLossOfConfirmedWrite, LegalLeaderAndEnsemble, Epochs, Acks,
    Fencing, ExactlyOnce, PrefixReads, Watermarks, Outcomes, Replies, Positions, Delivered, Copies,
    Ages, Coordination, SpaceForAppends, LatestIsLinearizable, Documents, HoldsWhileHandingOver, CoreInvariants,
    Survivors, Remembered, Expecting, SinksAreWhole,
)


class Checkers:
    """All promises of one run.  Every hook is an attribute: a function that calls each checker having it."""

    node_started: Any
    node_crashed: Any
    node_wiped: Any
    node_stepped: Any
    node_writes: Any
    node_synced: Any
    node_sends: Any
    node_asked: Any
    floors_asked: Any
    node_promised: Any
    node_replies: Any
    node_answers: Any
    node_released: Any
    record_saved: Any
    operator_sends: Any
    operator_stepped: Any
    operator_answered: Any
    operator_resumes: Any
    producer_answered: Any
    committed: Any
    led: Any
    reader_begins: Any
    reader_delivers: Any
    reader_passes: Any
    reader_notes: Any
    reader_stepped: Any
    latest_asked: Any
    node_wrote: Any
    node_replied: Any
    documents_asked: Any
    loss_accepted: Any

    def __init__(self, world: World, extra: tuple[Any, ...] = ()) -> None:
        self.history = History(world, self)
        self.history.fates = fates = Fates(world, self.history)
        # Fates first: others ask what was visible when an answer left.
        checkers: list[Any] = [fates, *(promise(world, self.history) for promise in (*PROMISES, *extra))]
        checkers.append(self.history)
        self.copies = next(each for each in checkers if isinstance(each, Copies))
        self.documents = next(each for each in checkers if isinstance(each, Documents))
        for hook in HOOKS:
            setattr(self, hook, _caller([getattr(each, hook) for each in checkers if hasattr(each, hook)]))

    def replace(self, *checkers: Any) -> None:
        """Let only these watch from now on: a fault broke what all other promises stand on."""
        for hook in HOOKS:
            setattr(self, hook, _caller([getattr(each, hook) for each in checkers if hasattr(each, hook)]))

    def committed_last(self, shard: ShardId) -> int:
        """Return the last offset known committed."""
        return self.history.of(shard).last


def _caller(functions: list[Any]) -> Any:
    if len(functions) == 1:
        return functions[0]

    def call(*arguments: Any) -> None:
        for function in functions:
            function(*arguments)

    return call
