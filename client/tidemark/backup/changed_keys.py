"""The keys that changed between a backup and a pin, from the change streams of all shards.

Keys alone cross the network; their documents are read at the pin.  A key may be named that did not change.
Stays out: change streams (changes), what becomes of the keys (taking).
"""

from __future__ import annotations

import asyncio

from tidemark_core.base.ids import NO_LINEAGE, shard_id
from tidemark_core.upr.filters import Filter
from tidemark_core.upr.history import Point
from tidemark_core.upr.positions import Scope, Token, encode

from ..change_events import Advanced, ChangeBatch, Discarded, Rebuilding, SnapshotBegin, SnapshotEnd
from ..client import Client
from ..errors import ChangesFailed, Unavailable
from .manifest import Manifest, ShardRecord

KEY_BYTES_MAX = 256 << 20
KEY_OVERHEAD_BYTES = 100

Changed = dict[int, set[bytes]]


class NotComparable(Exception):
    """The changes since a backup cannot be had: the text says why."""


async def changed_keys(
    client: Client, base: Manifest, shards: list[ShardRecord], timeout_s: float
) -> Changed:
    """Return the keys by shard that changed from the cuts of `base` to those of `shards`, or a few more.

    Raises NotComparable when one history does not lead from the one to the other, or when the keys take more than
    256 MiB; Unavailable when for `timeout_s` seconds nothing comes.
    """
    group = await client.group(base.group)
    if [each.shard for each in base.shards] != [each.shard for each in shards]:
        raise NotComparable("it has other shards")
    for old, new in zip(base.shards, shards, strict=True):
        if old.lineage in (b"", NO_LINEAGE) or old.lineage != new.lineage or old.seqno > new.seqno:
            raise NotComparable(f"shard {old.shard} has another history")
    wanted = {each.shard: each.seqno for each in shards}
    points = {shard_id(group.group_id, each.shard): Point(each.lineage, each.epoch, each.seqno) for each in base.shards}
    token = encode(Token(Scope(group.group_id, Filter((), False).digest), points))
    found: Changed = {shard: set() for shard in wanted}
    size = 0
    async with client.changes(base.group, from_=token, values=False) as changes:
        events = changes.batches()
        while wanted:
            try:
                async with asyncio.timeout(timeout_s):
                    event = await anext(events)
            except TimeoutError:
                raise Unavailable(f"no changes of shards {sorted(wanted)} came for {timeout_s:g} s") from None
            except ChangesFailed as error:
                raise NotComparable(error.message) from error
            match event:
                case ChangeBatch():
                    keys = found[event.shard]
                    for row in event.rows:
                        if row.key not in keys:
                            keys.add(row.key)
                            size += len(row.key) + KEY_OVERHEAD_BYTES
                    if size > KEY_BYTES_MAX:
                        raise NotComparable("too many keys changed since")
                case SnapshotEnd() | Advanced():
                    if event.seqno >= wanted.get(event.shard, event.seqno + 1):
                        del wanted[event.shard]
                case Rebuilding():
                    raise NotComparable(event.message)
                case SnapshotBegin() | Discarded():
                    pass
    return found
