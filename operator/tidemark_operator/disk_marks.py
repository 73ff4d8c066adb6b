"""DiskMarks: asks nodes how many writes are durable on their disks, keeps the answers, has older copies given up (D52).

A node answers with what is durable, and only then etcd keeps it.  A disk with fewer writes than etcd keeps of the same
life is an older copy.  Its node gives it up where the other members of all that it holds are enough; else the disk is
held back, and `held` says why.  The node compares again before it acts, so a stale request harms no disk.
Stays out: which mark is older (core's `marks`), how the node comes back (rules K14 and D67).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

import grpc.aio
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.base.marks import Copies, DiskMark, is_older, kept, needs
from tidemark_core.base.quorum import majority
from tidemark_core.optimistic.ring import Range
from tidemark_core.replication.records import ShardRecord

from .etcd import OPERATIONS_MAX, EtcdStore, StoreUnavailable, Write
from .metadata import Keys, encode_mark
from .mirror import Mirror

log = logging.getLogger(__name__)

EVERY_S = 30.0


class Link(Protocol):
    """The part of the link to a node that DiskMarks needs."""

    @property
    def node(self) -> str: ...
    up: bool
    member: Member | None

    async def check_disk(self, known: DiskMark | None, *, give_up: bool) -> tuple[DiskMark, bool]: ...


class Heard(NamedTuple):
    """The answer of a node about its disk."""

    member: Member
    disk: DiskMark


def copies_of(records: Mapping[ShardId, ShardRecord], ranges: Mapping[int, Range]) -> Iterator[Copies]:
    """Yield what members hold.

    Each acknowledged entry of a shard is on one member of any majority, each acknowledged write of a range on one of
    any N - W + 1 owners.  With W = 1 that would be all owners, and those that are left have to do.
    """
    for shard, record in records.items():
        change = record.change
        joins = (change.new,) if change is not None and change.new is not None else ()
        yield Copies(
            f"shard {shard:x}", (*record.ensemble, *joins), majority(len(record.ensemble)),
            at_rest=change is None and not record.holdouts and record.source is None)
    for unit, found in ranges.items():
        quorum, members = found.own.quorum, found.members
        needed = min(len(found.own.members) - quorum.w + 1, len(found.own.members) - 1)
        yield Copies(f"range {unit:x}", members, needed, at_rest=found.pending is None)


class DiskMarks:
    """Run `run` as a task; `wake` says that a node is up again.

    `held` says of each node on an older disk why that is not given up.
    """

    def __init__(
        self, store: EtcdStore, keys: Keys, mirror: Mirror, links: Iterable[Link], active: Callable[[], bool],
        copies: Callable[[], Iterable[Copies]], on_held: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`copies` returns what all members hold; `on_held` is called when `held` changes."""
        self._store = store
        self._keys = keys
        self._mirror = mirror
        self._links = links
        self._active = active
        self._copies = copies
        self._on_held = on_held
        self._monotonic = monotonic
        self._due: set[str] = set()
        self._news = asyncio.Event()
        self._heard: dict[str, Heard] = {}    # since the link of a node came up last
        self.held: dict[str, str] = {}

    def wake(self, node: str) -> None:
        """Ask this node soon: its process, or its disk, may be another one."""
        self._heard.pop(node, None)
        self._due.add(node)
        self._news.set()

    async def run(self) -> None:
        """Ask each node when it is up again and every 30 seconds, while this operator is active."""
        all_at = self._monotonic()
        while True:
            if self._monotonic() >= all_at:
                self._due.update(link.node for link in self._links)
                all_at = self._monotonic() + EVERY_S
            self._news.clear()
            if self._due and self._active():
                try:
                    await self.look()
                except StoreUnavailable as error:
                    log.warning("marks of disks wait for etcd: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(all_at - self._monotonic()):
                    await self._news.wait()

    async def look(self) -> None:
        """Ask the nodes that are due, keep what they say, and judge all.  Raises StoreUnavailable."""
        due, self._due = self._due, set()
        links = {link.node: link for link in self._links if link.up}
        self._heard = {node: heard for node, heard in self._heard.items() if node in links}
        await asyncio.gather(*(self._ask(link) for node, link in links.items() if node in due))
        await self._keep()
        await self._judge(links)

    def _known(self, node: str) -> DiskMark | None:
        item = self._mirror.marks.get(node)
        return item.value if item is not None else None

    async def _ask(self, link: Link, *, give_up: bool = False) -> None:
        member = link.member
        try:
            disk, given_up = await link.check_disk(self._known(link.node), give_up=give_up)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:   # else its release is older
                log.info("%s does not say how many writes are durable: %s", link.node, error.details())
            return
        except ConnectionError:
            return
        if given_up:
            log.error("%s gives up its disk, an older copy of itself, and comes back as a new member", member)
            self._heard.pop(link.node, None)
        elif link.node in self._due:
            return   # it was linked again meanwhile: another process, perhaps on another disk, may answer now
        elif member is not None and disk.incarnation == member.incarnation:
            self._heard[link.node] = Heard(member, disk)

    async def _keep(self) -> None:
        """Write marks that have risen, and delete those of nodes that are no more.  Raises StoreUnavailable."""
        writes, marks, nodes = list[Write](), self._mirror.marks, self._mirror.nodes
        for node, heard in self._heard.items():
            known = self._known(node)
            mark = kept(known, heard.disk)
            if node in nodes and mark != known:
                writes.append(Write(self._keys.mark(node), encode_mark(mark), marks[node].revision if known else 0))
        writes += [
            Write(self._keys.mark(node), None, item.revision) for node, item in marks.items() if node not in nodes]
        for start in range(0, len(writes), OPERATIONS_MAX):
            page = writes[start : start + OPERATIONS_MAX]
            if not self._active() or await self._mirror.replace(self._store, page):
                continue
            for write in page:   # what cannot be read, or another operator wrote, does not keep the others back
                if not await self._mirror.replace(self._store, [write]):
                    log.warning("%s is left as it is: another operator wrote it, or it cannot be read", write.key)

    async def _judge(self, links: Mapping[str, Link]) -> None:
        """Have one disk that is older given up, if others hold everything; the next one, when that is done."""
        older = {node for node, heard in self._heard.items() if is_older(self._known(node), heard.disk)}
        current = {
            heard.member for node, heard in self._heard.items()
            if node not in older and links[node].up and links[node].member == heard.member}
        things = list(self._copies()) if older else []
        held, free = dict[str, str](), list[str]()
        for node in sorted(older):
            if (lacks := needs(self._heard[node].member, things, current)) is None:
                free.append(node)
            else:
                held[node] = f"too few members of {lacks} are up on disks that lack nothing"
                if node not in self.held:
                    log.error("the disk of %s is an older copy of itself, and is kept: %s", node, held[node])
        if free and self._active():
            await self._ask(links[free[0]], give_up=True)
        if held != self.held:
            self.held = held
            self._on_held()
