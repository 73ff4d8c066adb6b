"""The options of a run of the keyspace plane, drawn for each seed: every run leaves out some kinds of faults.

Stays out: what an option does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark_core.optimistic.coordinating.reading import Repair
from tidemark_core.optimistic.ring import Quorum

from ..dice import Dice
from ..network import NetworkOptions

QUORUMS = (Quorum(3, 2, 2), Quorum(3, 2, 2), Quorum(3, 1, 3), Quorum(2, 1, 2), Quorum(4, 2, 3), Quorum(5, 3, 3))
"""All of them are strict (D63)."""


@dataclass(slots=True)
class FaultOptions:
    """The chance of each fault against the others; one happens about every `every_ms`."""

    every_ms: int = 200
    down_ms: int = 200
    crash: float = 0.0
    cut: float = 0.0            # one direction of one link
    isolate: float = 0.0        # all links of one node
    split: float = 0.0          # the nodes in two parts
    slow: float = 0.0           # one link
    clock: float = 0.0          # within the bound, or beyond it
    wipe: float = 0.0
    old_image: float = 0.0
    ahead: float = 0.0          # all clocks together, which are set back later


@dataclass(slots=True)
class OperatorOptions:
    """The chances at each of the operator's ticks while nothing is open."""

    every_ms: int = 30
    lost: float = 0.0           # per node, that a push of the record does not reach it
    swap: float = 0.0
    resize: float = 0.0         # another N, R or W
    abort: float = 0.0          # of a move that is open
    floor: float = 0.0          # a round begins
    give_up: float = 0.0        # of a round that is open


@dataclass(slots=True)
class ClientOptions:
    """Clients ask every `think_ms`; `expiring` is the chance that a value has a time to live.

    `repairing`: they use one String, and also take its stamps from the future back (D84).
    """

    think_ms: int = 10
    expiring: float = 0.0
    repairing: bool = False
    timeout_ms: int = 1_000


@dataclass(slots=True)
class RangeOptions:
    """Everything drawn for one run.  Times are milliseconds."""

    nodes: int = 4
    quorum: Quorum = QUORUMS[0]
    skew_ms: int = 40
    sync_ms: int = 3
    read_ms: int = 2
    mark_ms: int = 300
    repair: Repair = Repair.BLOCKING
    sloppy: bool = False                # nodes that keep a write for owners count for it (D73)
    replay_pause_ms: int = 200
    repair_every_ms: int = 0            # owners pull by themselves: 0, for most rules show where they do not
    forgetful: int = 2                  # of so many nodes one has no memory for digests, and forgets them (D85)
    write_window_ms: int = 1_300        # at least the longest deadline and 4 times the skew (D68)
    crash_in_step: float = 0.0
    network: NetworkOptions = field(default_factory=NetworkOptions)
    faults: FaultOptions = field(default_factory=FaultOptions)
    operator: OperatorOptions = field(default_factory=OperatorOptions)
    clients: ClientOptions = field(default_factory=ClientOptions)


def draw_ahead(dice: Dice) -> RangeOptions:
    """Draw the options of a run in which all clocks are ahead at times.  Its keyspace is strict."""
    options = draw(dice)
    options.sloppy = False
    options.network.straggle = max(options.network.straggle, 0.01)
    options.network.loss = max(options.network.loss, 0.1)
    options.faults.every_ms, options.faults.down_ms = dice.between(60, 120), dice.between(60, 200)
    options.faults.ahead, options.faults.isolate = 2.0, 1.0
    options.clients.think_ms = dice.between(2, 8)
    options.clients.repairing = True
    return options


def draw(dice: Dice) -> RangeOptions:
    """Draw the options of a run."""

    def maybe(chance: float, low: float, high: float) -> float:
        return dice.uniform(low, high) if dice.chance(chance) else 0.0

    quorum = dice.pick(QUORUMS)
    return RangeOptions(
        nodes=dice.between(max(3, quorum.n), 7),
        quorum=quorum,
        skew_ms=dice.between(10, 60),
        sync_ms=dice.between(1, 6),
        read_ms=dice.between(0, 4),
        repair=dice.pick(list(Repair)) if dice.chance(0.4) else Repair.BLOCKING,
        sloppy=dice.chance(0.2),
        crash_in_step=maybe(0.4, 0.0003, 0.003),
        network=NetworkOptions(
            delay_ms_max=dice.between(1, 12), loss=maybe(0.6, 0.005, 0.1), repeat=maybe(0.5, 0.005, 0.1),
            straggle=maybe(0.5, 0.005, 0.05), fifo=dice.chance(0.3),
        ),
        faults=FaultOptions(
            every_ms=dice.between(40, 250), down_ms=dice.between(60, 500), crash=maybe(0.7, 0.3, 2),
            cut=maybe(0.6, 0.3, 2), isolate=maybe(0.5, 0.3, 1.5), split=maybe(0.4, 0.3, 1), slow=maybe(0.4, 0.3, 1.5),
            clock=maybe(0.5, 0.3, 1), wipe=maybe(0.4, 0.1, 0.6), old_image=maybe(0.4, 0.1, 0.6),
        ),
        operator=OperatorOptions(
            every_ms=dice.between(10, 60), lost=maybe(0.8, 0.1, 0.7), swap=maybe(0.8, 0.02, 0.2),
            resize=maybe(0.5, 0.02, 0.15), abort=maybe(0.4, 0.005, 0.03), floor=maybe(0.8, 0.02, 0.15),
            give_up=maybe(0.4, 0.005, 0.03),
        ),
        clients=ClientOptions(think_ms=dice.between(3, 25), expiring=maybe(0.5, 0.1, 0.5)),
    )
