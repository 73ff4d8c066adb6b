"""Pages of a keyspace: the elements of a key, or the Strings of ranges, one range behind the other.

A page is asked for by the range's index and the first name wanted, and by nothing that a move of the ring changes.  So
a token goes on through moves, and skips nothing that existed all the time.  Pages are not isolated.
Stays out: which node is asked (keyspace_calls).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from tidemark_core.optimistic.sizes import KEY_BYTES_MAX
from tidemark_wire.v1 import keyspaces_pb2

from .errors import InvalidArgument
from .iterating import Iteration
from .keyspace_results import OK, WEAK, Outcome

T = TypeVar("T")

PAGE_ROWS_MAX = 1000
ELEMENTS, STRINGS = "e", "s"


class Place(NamedTuple):
    """Where a page begins: the index of the range, 0 for elements of a key, and the first name wanted."""

    number: int
    first: bytes


class Scope(NamedTuple):
    """All that a token belongs to, its `key` empty for Strings; and `wanted`, indexes of ranges to read, ascending."""

    kind: str
    keyspace_id: int
    ranges: int
    wanted: Sequence[int]
    key: bytes = b""

    def first(self, least: int = 0) -> Place | None:
        """Return the beginning of the first wanted range from an index on; None: there is none."""
        at = bisect_left(self.wanted, least)
        return Place(self.wanted[at], b"") if at < len(self.wanted) else None

    def token(self, at: Place) -> str:
        """Return a place as a text that another program may go on from."""
        return ".".join(
            (self.kind, str(self.keyspace_id), str(self.ranges), self.key.hex(), str(at.number), at.first.hex()))

    def place(self, token: str) -> Place:
        """Return the place that a token means; raises InvalidArgument."""
        try:
            kind, keyspace_id, ranges, key, index, first = token.split(".")
            scope = Scope(kind, int(keyspace_id), int(ranges), self.wanted, bytes.fromhex(key))
            at = Place(int(index), bytes.fromhex(first))
        except (ValueError, TypeError, AttributeError):
            raise InvalidArgument("token", "is none that a scan of a keyspace gave") from None
        if len(at.first) > KEY_BYTES_MAX + 1 or not 0 <= at.number < max(1, self.ranges):
            raise InvalidArgument("token", "is none that a scan of a keyspace gave")
        if scope != self:
            raise InvalidArgument(
                "token", "is of another key, or of another keyspace, or the keyspace was deleted and made again",
                advice="Begin without a token.")
        if at.number not in self.wanted:
            raise InvalidArgument("token", f"goes on in range {at.number}, which is not one of `ranges`")
        return at


Fetch = Callable[[Scope, Place], Awaitable[keyspaces_pb2.KeyspacePage]]
"""Returns the page at a place, whose outcome is one that holds."""


class KeyspacePages(Generic[T]):
    """Entries of a keyspace by name.  Iterate over it, or over its `pages()`; another iteration goes on behind it.

    `smembers` gives members, `hgetall` pairs of field and value, `scan` pairs of key and value.  Elements come by the
    order of their bytes, Strings range by range and in each range by key.  Pages are not isolated: each shows what was
    written before it was asked for.
    """

    def __init__(
        self, begin: Callable[[], Awaitable[Scope]], fetch: Fetch,
        shape: Callable[[keyspaces_pb2.KeyspaceEntry], T], token: str | None,
    ) -> None:
        self._begin = begin
        self._fetch = fetch
        self._shape = shape
        self._scope: Scope | None = None
        self._given = token
        self._next: Place | None = None     # of the page to fetch
        self._behind: Place | None = None   # what was handed out; None: all
        self.outcome: Outcome = OK
        """'weak' once a page asked fewer owners than the keyspace asks for."""

    @property
    def token(self) -> str | None:
        """The place behind what was handed out, for `token` of a later call; None: at the end, or none was given."""
        if self._scope is None:
            return self._given
        return None if self._behind is None else self._scope.token(self._behind)

    def pages(self) -> Iteration[list[T]]:
        """Iterate over entries page by page; a page may be empty.  A timeout of `anext` ends no iteration."""
        self.rewind()
        return Iteration(self._next_page)

    def __aiter__(self) -> Iteration[T]:
        self.rewind()
        return Iteration(self.next_entries)

    def rewind(self) -> None:
        """Go on behind what was handed out: an iteration that was left may have fetched more."""
        self._next = self._behind

    async def all(self) -> list[T]:
        """Return all entries; they must fit into memory."""
        return [entry async for entry in self]

    async def _next_page(self) -> Sequence[list[T]] | None:
        entries = await self._page()
        return None if entries is None else (list(self._handed_out(*entries)),)

    async def next_entries(self) -> Iterator[T] | None:
        """Return the entries of the next page, each handed out once it is taken; None at the end."""
        entries = await self._page()
        return None if entries is None else self._handed_out(*entries)

    async def _page(self) -> tuple[keyspaces_pb2.KeyspacePage, Place, Place | None] | None:
        """Return the next page, its place and that of the one behind it; None at the end."""
        if self._scope is None:
            scope = await self._begin()
            self._next = self._behind = scope.first() if self._given is None else scope.place(self._given)
            self._scope = scope
        at = self._next
        if at is None:
            return None
        page = await self._fetch(self._scope, at)
        if page.outcome == WEAK:
            self.outcome = WEAK
        if page.HasField("next"):
            behind: Place | None = Place(at.number, page.next)
        else:
            behind = self._scope.first(at.number + 1)
        self._next = behind
        return page, at, behind

    def _handed_out(self, page: keyspaces_pb2.KeyspacePage, at: Place, behind: Place | None) -> Iterator[T]:
        """Yield entries, and note that what is behind each was not handed out."""
        last = len(page.entries) - 1
        for place, entry in enumerate(page.entries):
            self._behind = behind if place == last else Place(at.number, entry.name + b"\0")
            yield self._shape(entry)
        self._behind = behind
