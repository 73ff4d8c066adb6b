"""A loss that is accepted: when a survivor begins alone, checkers and clients learn what is given up (K14e, N14).

Only what the survivor does not hold is given up.  The producers of the shard are replaced: what is lost is a gap in
their sequences, which no retry fills.  The answers that name entries of the survivor are judged to the end.
Stays out: losing disks (`faults`), asking for the act (`admin`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark_core.base.ids import ShardId
from tidemark_core.replication.records import ShardRecord

from .checkers.confirmed import holds
from .clients import Producer

if TYPE_CHECKING:
    from .world import World


def record_stored(world: World, shard: ShardId, before: ShardRecord, after: ShardRecord) -> None:
    """Look whether this record is the first one that a survivor begins alone from."""
    source = after.source
    if source is None or after.ensemble != (source,) or before.source == source:
        return
    image = world.nodes[source.node].disk.image(shard)
    lost = [entry for entry in world.checkers.history.of(shard).entries if not holds(image, entry)]
    world.trace.note("store", "loss accepted", f"{source} begins alone, {len(lost)} entries are given up")
    world.trace.count("losses_accepted")
    world.trace.count("entries_given_up", len(lost))
    world.checkers.loss_accepted(shard, before, source, lost)
    for at, former in enumerate(world.producers):
        if former.shard == shard:
            former.retire(lost)
            world.retired.append(former)
            world.producers[at] = fresh = Producer(world, f"p{len(world.producers) + len(world.retired)}", shard)
            fresh.stopped = former.stopped
            world.after(world.dice.between(0, 60), fresh.tick)
