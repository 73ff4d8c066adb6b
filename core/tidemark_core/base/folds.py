"""Fold: a value computed from the entries of one log in log order, and what the log asks of every fold.

A log is made with a table of fold classes.  Each entry goes to the folds that name its kind.  A fold takes entries
back exactly when the log is truncated, and travels in checkpoints: so it survives restarts, trimming and new members.
A new fold is one file with a subclass of `Fold`, and one row in the table `FOLDS` of `tidemark_core.shard`.
Stays out: which folds exist, which decisions use them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, Self, TypeVar

from .entry import Entry, Kind

TAG_BYTES = 4
NO_OFFSET = 1 << 62
"""Above every offset: what `Fold.oldest` says when the fold speaks of none."""

Covering = Callable[[int], object | None]
"""Says which rollback covers an offset, None when none does."""


class Fold(ABC):
    """One fold of one log, empty when it is made; a hook that a subclass does not override costs nothing.

    `tag` names the fold and its bytes in checkpoints: 4 ASCII bytes, never used again for others.  `kinds` are the
    kinds of entries it folds.  Of an entry a fold may use the header, and the payload of the kinds in
    `FOLDED_WITH_PAYLOAD`: that is all that a restart reads (`base.entry.folded_part`).

    `begins_empty` says what a checkpoint without this fold's section means.  True: the fold is empty there, and an
    empty fold writes no section.  This is right only when the fold is as old as its entries: a release without the
    fold knows neither its kinds nor the kind of shard that has it, so no log of such a release holds one of them.
    False: the section is always written, and a checkpoint without it is refused.

    The bytes of a section change only with a new tag, or with the version byte of a section that begins with one: then
    an older release refuses them as newer (`FormatTooNew`), where it would misread them.  Checkpoints of format 3 have
    neither and stay byte-equal to `tests/core/replication/golden/checkpoint-3*.hex`, read and written.
    """

    tag: ClassVar[bytes]
    kinds: ClassVar[frozenset[Kind]]
    begins_empty: ClassVar[bool]

    __slots__ = ()

    @abstractmethod
    def note(self, entry: Entry) -> None:
        """Fold in the next entry; raises RemoteViolation when it cannot be, and then changes nothing."""

    @abstractmethod
    def undo_to(self, head: int) -> None:
        """Take back every entry above the offset `head`, which is never below what was settled."""

    @abstractmethod
    def upto(self, offset: int, logged_ms: int) -> Self:
        """Return an independent copy as the fold was behind `offset`, at or above what was settled.

        The log's clock stood at `logged_ms` there: what that clock has passed may be left out.
        """

    @abstractmethod
    def encode(self) -> bytes:
        """Return the fold's section in a checkpoint; equal folds give equal bytes."""

    @classmethod
    @abstractmethod
    def decode(cls, data: bytes, at: int) -> tuple[Self, int]:
        """Read `encode`'s bytes at `at`; return the fold and where it ended.

        Raises struct.error when they are cut short, RemoteViolation when they say what cannot be.
        """

    # --- hooks that do nothing unless a fold needs them -------------------------------------------------------

    def settle(self, commit: int) -> None:   # noqa: B027
        """Forget how to undo entries up to the offset `commit`: those are committed."""

    def decide(self, confirmed: int, covering: Covering) -> None:   # noqa: B027
        """Everything up to `confirmed` is decided: it counts, unless `covering` names a rollback for it (L10)."""

    def trim(self, first: int) -> None:   # noqa: B027
        """Forget what concerns offsets below `first` alone: the log has no entry there.

        No fold speaks of one there that a rollback covers.
        """

    def purge(self, logged_ms: int) -> None:   # noqa: B027
        """Free memory of what the log's clock has passed at a committed entry; changes no answer."""

    @property
    def oldest(self) -> int:
        """The lowest offset the fold speaks of now or once entries are undone; rollbacks from there on are kept."""
        return NO_OFFSET

    @property
    def weight(self) -> int:
        """How many items a checkpoint of the fold holds; heavy ones are written less often."""
        return 0


Table = tuple[type[Fold], ...]
"""The folds of one log, in the order of their sections in a checkpoint."""

F = TypeVar("F", bound=Fold)


def check_table(table: Table) -> None:
    """Raise ValueError when two folds share a tag, or a tag is not 4 ASCII bytes."""
    seen: dict[bytes, str] = {}
    for kind in table:
        name = kind.__qualname__
        if len(kind.tag) != TAG_BYTES or not kind.tag.isascii():
            raise ValueError(f"tag of fold {name} is {kind.tag!r}, must be {TAG_BYTES} ASCII bytes")
        if kind.tag in seen:
            raise ValueError(f"folds {seen[kind.tag]} and {name} share the tag {kind.tag!r}")
        seen[kind.tag] = name


def find(folds: Iterable[Fold], wanted: type[F]) -> F:
    """Return the fold of this class; raises LookupError when the table has none."""
    for fold in folds:
        if type(fold) is wanted:
            return fold
    raise LookupError(f"the log is made without the fold {wanted.__qualname__}")


def overriding(folds: Iterable[Fold], hook: str) -> tuple[Fold, ...]:
    """Return the folds that do something at `hook`."""
    return tuple(fold for fold in folds if getattr(type(fold), hook) is not getattr(Fold, hook))
