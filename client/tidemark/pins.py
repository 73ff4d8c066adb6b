"""Pin: a named state of the documents of all shards, which every member serves until it ends (U70-U72).

Stays out: the calls (documents).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.upr.positions import Scope

from .document import Cut, Document
from .document_calls import LINEARIZABLE, PinnedAt
from .document_scans import Scan, position_of
from .document_writes import checked_key
from .errors import NotPinned

if TYPE_CHECKING:
    from .documents import Documents


class Pin:
    """A pin of all or some shards.  Made by `Documents.pin`; with `async with` it is released at the end.

    `cuts` are the states by shard: seqno, and for a pin made here also epoch, lineage, count and digest.
    """

    def __init__(self, documents: Documents, name: str, cuts: dict[int, Cut], scope: Scope) -> None:
        self._documents = documents
        self._scope = scope
        self.name = name
        self.cuts: Mapping[int, Cut] = cuts
        self._at = {shard: PinnedAt(name, cut.seqno) for shard, cut in cuts.items()}
        self._released = False

    @property
    def position(self) -> str | None:
        """The position from which `Client.changes` goes on behind the pin.

        None for a pin of some shards, and for one made elsewhere, of which a scan has it.
        """
        if len(self.cuts) < len(self._documents.shards):
            return None     # it would begin the other shards at their beginning
        return position_of(self._scope, self.cuts)

    async def get(self, key: bytes) -> Document | None:
        """Return a document as the pin shows it; raises NotPinned once the pin has ended."""
        self._check()
        return await self._documents._get(checked_key(key), LINEARIZABLE, 0, self._at)

    async def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Document]:
        """Return the documents that the pin shows by key; raises as `get`."""
        self._check()
        return await self._documents._get_many(keys, LINEARIZABLE, 0, self._at)

    def scan(
        self, *, prefix: bytes | None = None, first: bytes | None = None, until: bytes | None = None,
        shards: Sequence[int] | None = None, keys_only: bool = False, ordered: bool = False, limit: int | None = None,
    ) -> Scan:
        """Return the documents that the pin shows; the options are those of `Documents.scan`, any member serves it."""
        self._check()
        if shards is None and len(self.cuts) < len(self._documents.shards):
            shards = sorted(self.cuts)
        return self._documents._scan(
            LINEARIZABLE, 0, self._at, prefix=prefix, first=first, until=until, shards=shards, keys_only=keys_only,
            ordered=ordered, limit=limit,
        )

    async def renew(self, ttl_s: float) -> None:
        """Let the pin last `ttl_s` seconds from now on; raises NotPinned when it had ended meanwhile.

        A pin that ended is pinned again at once, with other cuts, before the call can know; that one is released.
        """
        self._check()
        renewed = await self._documents.pin(self.name, ttl_s, shards=list(self.cuts))
        for shard, cut in renewed.cuts.items():
            if cut.seqno != self.cuts[shard].seqno:
                await self.release()
                raise not_pinned(self.name, shard)

    async def release(self) -> None:
        """End the pin on its shards; one that has ended is no error."""
        self._documents.check_life(self._scope.group)
        await self._documents.unpin(self.name, shards=list(self.cuts))
        self._released = True

    def _check(self) -> None:
        """Raise where the group is another one, or this pin was released: a member that is behind still shows it."""
        self._documents.check_life(self._scope.group)
        if self._released:
            raise not_pinned(self.name, min(self.cuts))

    async def __aenter__(self) -> Pin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    def __repr__(self) -> str:
        return f"Pin({self.name!r}, {({shard: cut.seqno for shard, cut in self.cuts.items()})})"


def not_pinned(name: str, shard: int) -> NotPinned:
    """Return the error that says a shard has no such pin."""
    return NotPinned(Refused(Reason.NOT_PINNED, f"no pin {name!r} with that cut is active on shard {shard}"))
