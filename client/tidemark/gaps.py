"""Gaps: offsets without a record, for those who want to see them.

Stays out: finding them; nodes say where they are (cursor, delivery).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidemark_core.delivery.messages import GapKind


class Gap(NamedTuple):
    """The offsets from `first` to `last`, inclusive, of which the reader gets no record.

    HOLE: appended and rolled back, in nobody's log for ever.  TRIM: removed by retention.  DATALOSS: every member
    answered that it does not hold them.  ACCESS: the reader may not read on.  UNDECODABLE: the
    batch is not what an appender writes.
    """

    kind: GapKind
    shard: int
    first: int
    last: int

    @property
    def offsets(self) -> int:
        """How many offsets it has."""
        return self.last - self.first + 1


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    GapT = TypeVar("GapT", bound=Gap, default=Gap, covariant=True)
else:
    from typing import TypeVar

    GapT = TypeVar("GapT")
"""What a reader yields beside records: `Gap` where gaps were asked for, else `Never`."""
