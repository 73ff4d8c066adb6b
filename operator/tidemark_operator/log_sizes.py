"""Log sizes: ask nodes, all at once, how much log of shards they hold.

Stays out: whom to ask for what (`copying`), what is made of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from tidemark_core.base.ids import ShardId

from .nodes import NodeLinks

log = logging.getLogger(__name__)


async def log_bytes(links: NodeLinks, asked: Mapping[str, Sequence[ShardId]]) -> dict[ShardId, int]:
    """Return what the nodes say; what nobody says is left out."""
    found: dict[ShardId, int] = {}
    known = [link for node in asked if (link := links.get(node)) is not None]
    answers = await asyncio.gather(*(link.log_bytes(asked[link.node]) for link in known), return_exceptions=True)
    for link, answer in zip(known, answers, strict=True):
        if isinstance(answer, BaseException):
            log.info("%s does not say how much it holds: %s", link.node, answer)
        else:
            found.update(answer)
    return found
