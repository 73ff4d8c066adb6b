"""Facts of a group of documents, asked of its leaders: where its shards stand, and pins of what they hold.

Stays out: what follows from the facts (position, stream).
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..connecting import Cluster, Connection, group_of
from ..options import EARLIEST, LATEST, InvalidOption, Options
from ..pin_lease import pin_now, release
from ..schema import Mode
from .position import BEGINNING, Place, Position

if TYPE_CHECKING:
    from tidemark import Cut
    from tidemark.sync import SyncDocuments

log = logging.getLogger("pyspark_tidemark")


class ChangeFacts(Connection):
    """Asks about one group.  Every call raises InvalidOption, TidemarkError."""

    def __init__(self, cluster: Cluster, options: Options) -> None:
        super().__init__(cluster)
        self._options = options
        self._group = options.group
        self._documents: SyncDocuments | None = None

    def close(self) -> None:
        """End the connection; a later question connects again."""
        self._documents = None
        super().close()

    def start(self, from_: str | int) -> Position:
        """Return where a query begins: earliest, latest, a position of a scan or a pin, or milliseconds since 1970.

        Raises InvalidOption for another word, and for a position of another group.
        """
        from tidemark.errors import InvalidArgument

        client = self.connected()
        shards = sorted(group_of(client, self._group, Mode.CHANGES).shards)
        begin: str | datetime.datetime
        if isinstance(from_, int):
            begin = datetime.datetime.fromtimestamp(from_ / 1000, datetime.UTC)
        elif (word := from_.strip().lower()) == EARLIEST:
            return Position(self._group, dict.fromkeys(shards, BEGINNING))
        else:
            begin = "now" if word == LATEST else from_.strip()
        try:
            with client.changes(self._group, from_=begin) as changes:
                changes.open()
                cuts = changes.cuts
        except InvalidArgument as error:
            if error.field != "from_":
                raise
            raise InvalidOption(
                "startingOffsets", "must be earliest, latest, or a position such as a pin of this group has: "
                f"{error.message.removeprefix('from_: ')}") from None
        return Position(self._group, {
            shard: Place(cut.seqno, cut.epoch, cut.lineage.hex()) if cut.seqno else BEGINNING
            for shard, cut in sorted(cuts.items())})

    def pinned(self) -> Position:
        """Pin the documents and return the position there: it covers all that was confirmed before the call (P19)."""
        pin = pin_now(self.connected(), self._group, self._of_documents(), self._options.pin_lease_s)
        places = {shard: _place(cut)._replace(pinned=cut.seqno) for shard, cut in sorted(pin.cuts.items())}
        return Position(self._group, places, pin.name)

    def applied(self, shards: Sequence[int]) -> dict[int, Place]:
        """Return how far leaders have applied, without a pin; a shard that does not answer is left out."""
        from tidemark.errors import Unavailable

        documents = self._of_documents()

        def ask(shard: int) -> Place | None:
            try:
                return _place(documents.describe(shards=[shard])[shard].cut)
            except Unavailable as error:
                log.warning("shard %d of group %r does not say where it stands: %s", shard, self._group, error)
                return None

        return {shard: place for shard, place in self.each(shards, ask).items() if place is not None}

    def shards(self) -> list[int]:
        """Return the group's shards now."""
        return sorted(group_of(self.connected(), self._group, Mode.CHANGES).shards)

    def places(self) -> dict[int, Place]:
        """Return how far the leaders of all shards have applied."""
        return {shard: _place(each.cut) for shard, each in self._of_documents().describe().items()}

    def renew(self, position: Position) -> None:
        """Renew the lease of a position's pin."""
        self._of_documents().pin_at(position.pin, position.pinned()).renew(self._options.pin_lease_s)

    def release(self, names: Sequence[str], shards: Sequence[int] | None = None) -> None:
        """End pins on all or some shards."""
        release(self.connected(), self._group, names, shards)

    def _of_documents(self) -> SyncDocuments:
        if self._documents is None:
            self.shards()   # says in words what a group of another kind is
            self._documents = self.connected().documents(self._group, timeout_s=self._options.barrier_timeout_s)
        return self._documents


def _place(cut: Cut) -> Place:
    if not cut.lineage.strip(b"\0"):
        raise InvalidOption("group", "was made by a release without change streams: its shards have no history")
    return Place(cut.seqno, cut.epoch, cut.lineage.hex(), 0, f"{cut.count}:{cut.digest.hex()}")


def changed(position: Position, places: Mapping[int, Place]) -> bool:
    """Say whether documents changed behind a position; a shard that is new has."""
    return any(
        (at := position.shards.get(shard)) is None or at.digest != place.digest for shard, place in places.items())
