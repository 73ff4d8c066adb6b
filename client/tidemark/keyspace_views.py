"""Views of keyspaces for people: what each node has of a key, and what each node knows of ranges.

Nothing of them is a promise.  Stays out: asking nodes (keyspace_calls), drawing them (the CLI).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemark_core.base.ids import Member
from tidemark_core.optimistic.stamps import Stamp
from tidemark_wire.v1 import common_pb2
from tidemark_wire.v1 import keyspaces_pb2 as wire


@dataclass(frozen=True, slots=True)
class SeenCell:
    """A cell as a node holds it, without its value.  `sort`: 'string', 'element', or 'clear' of all elements.

    `expires_at_ms` is 0 where it stays; equal values have equal digests.  Of an element, `n` and the actor are its dot.
    """

    sort: str
    stamp: Stamp
    dead: bool
    expires_at_ms: int
    value_bytes: int
    value_digest: int
    n: int
    actor_node: str
    actor_start: bytes


@dataclass(frozen=True, slots=True)
class KeyAtNode:
    """One node's part of an explanation; of one that did not answer, only `member` is known.

    `part`: 'owner', 'pending', 'copying', 'withdrawn' or 'none'.  `lacks`: it is an owner, or becomes one, and does not
    hold the cell that decides.  `hints` are kept for owners; a hint names none.
    """

    member: Member
    answered: bool
    part: str
    version: int
    floor_ms: int
    promise_ms: int
    exchanged_ms: int
    needs_repair: bool
    cells: tuple[SeenCell, ...]
    cells_more: int
    hints: tuple[SeenCell, ...]
    hints_more: int
    lacks: bool


@dataclass(frozen=True, slots=True)
class KeyExplanation:
    """The cells of a key, or of an element of it, at every node, and why a read of all owners shows what it shows.

    `outcome` is 'ok' where every owner answered.  `winner` decides; `shown`: a read shows its value.  `now_ms` is the
    clock of the node that asked the others.
    """

    key: bytes
    element: bytes | None
    outcome: str
    range: int
    version: int
    own: tuple[Member, ...]
    pending: tuple[Member, ...]
    nodes: tuple[KeyAtNode, ...]
    winner: SeenCell | None
    shown: bool
    why: str
    now_ms: int

    @property
    def equal(self) -> bool:
        """Say whether every owner answered and all hold the same cells, deletes that a floor collects left aside."""
        owners = [node for node in self.nodes if node.member in self.own]
        floor_ms = max((node.floor_ms for node in owners), default=0)
        held = {frozenset(
            cell for cell in node.cells if not (cell.dead and cell.stamp.ms <= floor_ms)) for node in owners}
        return (
            self.outcome == "ok" and len(owners) == len(self.own) and len(held) == 1
            and not any(node.lacks for node in owners))

    @property
    def silent(self) -> tuple[str, ...]:
        """Names of the nodes that did not answer."""
        return tuple(node.member.node for node in self.nodes if not node.answered)


@dataclass(frozen=True, slots=True)
class RangeBlock:
    """A fact that keeps a floor from rising; `for_ms` is None where the node does not know since when."""

    what: str
    node: str | None
    for_ms: int | None


@dataclass(frozen=True, slots=True)
class RangeAtNode:
    """The knowledge of one node of a range; times are of its clock.

    `exchanges` has when the last complete exchange with each other owner began, `exchanged_ms` the least of them: None
    where there was none.  `late`: that is longer ago than half of the grace.  `needs_repair`: it dropped hints, and no
    complete exchange followed.
    """

    range: int
    version: int
    part: str
    own: tuple[Member, ...]
    pending: tuple[Member, ...]
    floor_ms: int
    promise_ms: int
    exchanged_ms: int | None
    exchanges: Mapping[str, int | None]
    late: bool
    needs_repair: bool
    hints: int
    hint_bytes: int
    oldest_hint_ms: int | None
    hints_lost: int
    blocks: tuple[RangeBlock, ...]


@dataclass(frozen=True, slots=True)
class RangesOfNode:
    """All ranges as one node knows them, by its clock `now_ms`."""

    now_ms: int
    ranges: tuple[RangeAtNode, ...]


@dataclass(frozen=True, slots=True)
class KeyspaceRanges:
    """The knowledge of each node that answered, by its name; `silent` says why others did not answer."""

    nodes: Mapping[str, RangesOfNode]
    silent: Mapping[str, str]


# --- from the wire ------------------------------------------------------------------------------------------


def explanation_of(key: bytes, element: bytes | None, answer: wire.KeyExplained) -> KeyExplanation:
    """Return an explanation as users get it."""
    return KeyExplanation(
        key, element, answer.outcome, answer.range, answer.version, _members(answer.own), _members(answer.pending),
        tuple(map(_node_of, answer.nodes)), _cell_of(answer.winner) if answer.HasField("winner") else None,
        answer.shown, answer.why, answer.now_ms)


def _node_of(node: wire.ExplainedNode) -> KeyAtNode:
    return KeyAtNode(
        _member_of(node.member), node.answered, node.part, node.version, node.floor_ms, node.promise_ms,
        node.exchanged_ms, node.needs_repair, tuple(map(_cell_of, node.cells)), node.cells_more,
        tuple(map(_cell_of, node.hints)), node.hints_more, node.lacks)


def _cell_of(cell: wire.SeenCell) -> SeenCell:
    return SeenCell(
        cell.sort, stamp_of(cell.stamp), cell.dead, cell.expires_at_ms, cell.value_bytes, cell.value_digest, cell.n,
        cell.actor_node, cell.actor_start)


def stamp_of(stamp: wire.KeyspaceStamp) -> Stamp:
    """Return a stamp as users get it."""
    return Stamp(stamp.ms, stamp.logical, stamp.node, stamp.start)


def range_of(shown: wire.RangeShown) -> RangeAtNode:
    """Return a range at a node as users get it."""
    return RangeAtNode(
        shown.range, shown.version, shown.part, _members(shown.own), _members(shown.pending), shown.floor_ms,
        shown.promise_ms, shown.exchanged_ms if shown.HasField("exchanged_ms") else None,
        {each.member.node: each.began_ms if each.HasField("began_ms") else None for each in shown.exchanges},
        shown.late, shown.needs_repair, shown.hints, shown.hint_bytes,
        shown.oldest_hint_ms if shown.HasField("oldest_hint_ms") else None, shown.hints_lost,
        tuple(RangeBlock(
            block.what, block.member.node if block.HasField("member") else None,
            block.for_ms if block.HasField("for_ms") else None) for block in shown.blocks))


def _members(members: Iterable[common_pb2.Member]) -> tuple[Member, ...]:
    return tuple(map(_member_of, members))


def _member_of(member: common_pb2.Member) -> Member:
    return Member(member.node, member.incarnation)
