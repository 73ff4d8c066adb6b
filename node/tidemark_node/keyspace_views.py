"""Views of keyspaces for people: core's inspections and reports as answers on the wire.

Stays out: asking the core (`keyspaces`), drawing them (the CLI).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import Place, Sort, encode_place
from tidemark_core.optimistic.coordinating.inspecting import Inspection, winner_of
from tidemark_core.optimistic.coordinating.retracting import Futures, Repaired
from tidemark_core.optimistic.inspection import Block, RangeReport
from tidemark_core.optimistic.messages import Inspected, Seen
from tidemark_core.optimistic.stamps import Stamp
from tidemark_wire.codecs import member_to_proto
from tidemark_wire.v1 import keyspaces_pb2 as wire

_SORTS = {Sort.STRING: "string", Sort.META: "clear", Sort.ELEMENT: "element", Sort.RETRACTED: "retracted"}


def stamp_of(stamp: Stamp) -> wire.KeyspaceStamp:
    """Return a stamp as callers get it."""
    ms, logical, node, start = stamp
    return wire.KeyspaceStamp(ms=ms, logical=logical, node=node, start=start)


def explained(found: Inspection, index: int, place: Place, now_ms: int) -> wire.KeyExplained:
    """Return the answer to `Explain` of what lies at a place."""
    record, winner = found.record, winner_of(found, place, now_ms)
    pending = record.pending.members if record.pending is not None else ()
    answer = wire.KeyExplained(
        outcome=found.outcome.value, range=index, version=record.version, own=map(member_to_proto, record.own.members),
        pending=map(member_to_proto, pending), shown=winner.shown, why=winner.why, now_ms=now_ms,
        winner=_cell(winner.cell) if winner.cell is not None else None)
    members = dict.fromkeys((*record.members, *found.answers, *found.silent))
    answer.nodes.extend(_node(member, found.answers.get(member), member in winner.lacking) for member in members)
    return answer


def _node(member: Member, m: Inspected | None, lacks: bool) -> wire.ExplainedNode:
    node = wire.ExplainedNode(member=member_to_proto(member), answered=m is not None)
    if m is not None:
        node.MergeFrom(wire.ExplainedNode(
            part=m.part.value, version=m.version, floor_ms=m.floor_ms, promise_ms=m.promise_ms,
            exchanged_ms=m.exchanged_ms, needs_repair=m.needs_repair, cells=map(_cell, m.cells),
            cells_more=m.cells_more, hints=map(_cell, m.hints), hints_more=m.hints_more, lacks=lacks))
    return node


def _cell(seen: Seen) -> wire.SeenCell:
    actor = seen.actor
    return wire.SeenCell(
        sort=_SORTS[seen.place.sort], stamp=stamp_of(seen.stamp), dead=seen.dead, expires_at_ms=seen.expires_at_ms,
        value_bytes=seen.size, value_digest=seen.digest, n=seen.n, actor_node=actor.node if actor is not None else "",
        actor_start=actor.start if actor is not None else b"")


def futures_page(page: Futures, now_ms: int) -> wire.FuturesPage:
    """Return a page of keys with stamps from the future."""
    return wire.FuturesPage(
        outcome=page.outcome.value, now_ms=now_ms, next=encode_place(page.behind) if page.behind is not None else None,
        keys=[wire.FutureKey(key=key, stamp=stamp_of(stamp), elements=elements) for key, stamp, elements in page.found])


def future_repaired(done: Repaired) -> wire.FutureRepaired:
    """Return the answer to a repair of one key."""
    return wire.FutureRepaired(
        outcome=done.outcome.value, missing=map(member_to_proto, done.missing),
        replaced=[wire.ReplacedStamp(was=stamp_of(was), became=stamp_of(became)) for was, became in done.stamps])


def ranges_page(
    me: Member, now_ms: int, first: int, reports: Sequence[RangeReport], next_: int | None
) -> wire.RangesPage:
    """Return a page of `Ranges` with these reports, the first of the range `first`."""
    return wire.RangesPage(
        member=member_to_proto(me), now_ms=now_ms, next=next_,
        ranges=[_range(report, first + place, now_ms) for place, report in enumerate(reports)])


def _range(report: RangeReport, index: int, now_ms: int) -> wire.RangeShown:
    record, hints = report.record, report.hints
    return wire.RangeShown(
        range=index, version=record.version, part=report.part.value, own=map(member_to_proto, record.own.members),
        pending=map(member_to_proto, record.pending.members if record.pending is not None else ()),
        floor_ms=record.floor_ms, promise_ms=report.promise_ms, exchanged_ms=report.exchanged_ms,
        exchanges=[wire.RangeExchange(member=member_to_proto(member), began_ms=began_ms)
                   for member, began_ms in report.exchanged.items()],
        late=report.late, needs_repair=report.needs_repair, hints=hints.count, hint_bytes=hints.bytes,
        oldest_hint_ms=hints.oldest_ms, hints_lost=hints.lost, blocks=_blocks(report.blocks, now_ms))


def _blocks(blocks: Iterable[Block], now_ms: int) -> Iterable[wire.RangeBlock]:
    for what, since_ms, member in ((block.what, block.since_ms, block.member) for block in blocks):
        yield wire.RangeBlock(
            what=what, member=member_to_proto(member) if member is not None else None,
            for_ms=max(0, now_ms - since_ms) if since_ms else None)
