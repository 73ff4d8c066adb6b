"""Disruption: one disruptive act at a time per cluster, held by a key in the cluster's etcd.

A restart, a volume that grows by one, the removal of a node, the moves of a Reconfiguration: each takes the key before
it begins, as (act, subject), and ends it when the world is as the act wanted it.

    if not await service.disruption.take(Act.REMOVAL, "prod-4"):
        return                     # somebody else's turn; a poke comes when that ends; `in_the_way` says whose it is
    ...                            # asked for again in each pass: who holds it is told yes at once
    await service.disruption.end(Act.REMOVAL, "prod-4")

Rules:

1. Only the active operator takes and ends.  The key hangs on no lease: it outlives the operator that wrote it.
2. A successor that comes to the same act and subject is given the key, and is its holder from then on.  Whoever runs
   acts of one kind looks at `hold` in each pass, whoever wrote it, and ends one that has nothing left to do: that is
   judged from the world (the pod, the node record, the Reconfiguration), never from what somebody remembers.
3. A hold is for an act under way, not for a wish: one that waits for something else (an approval, a copy that is
   missing, a person) ends its hold meanwhile, for perhaps only another act can mend what it waits for.
4. Subjects of one act may share the key where `at_most` of them may run at once (restarts by `maxUnavailable`).
5. The key says whose turn it is.  That data survives is the work of each act's own gate, and of etcd's transactions.

`taken` and `ended` are pure.  Stays out: what an act does, and when it is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tidemark_core.base.errors import RemoteViolation

from .condition_memory import timestamp
from .etcd import Conflict, EtcdStore, Saved, StoreUnavailable, Unknown, Write
from .metadata import dump_record, parse_record

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 5


class Act(StrEnum):
    """What may be under way; the subject is a node, of a Reconfiguration its name."""

    RESTART = "Restart"
    RESIZE = "Resize"
    REMOVAL = "Removal"
    RECONFIGURATION = "Reconfiguration"


@dataclass(frozen=True, slots=True)
class Hold:
    """Who has the key: one act, its subjects and since when each, and the operator that wrote it last."""

    act: Act
    subjects: Mapping[str, str]
    operator: str

    def __str__(self) -> str:
        """As in "Restart of prod-2 since 2026-01-01T00:00:00Z"."""
        return f"{self.act} of {', '.join(sorted(self.subjects))} since {min(self.subjects.values())}"

    def has(self, act: Act, subject: str) -> bool:
        return self.act is act and subject in self.subjects

    def encode(self) -> bytes:
        return dump_record({"act": self.act.value, "subjects": dict(self.subjects), "operator": self.operator})

    @classmethod
    def decode(cls, data: bytes) -> Hold:
        raw = parse_record(data, "disruption")
        try:
            subjects: dict[str, Any] = dict(raw["subjects"])
            if not subjects or not all(isinstance(since, str) for since in subjects.values()):
                raise ValueError("no subjects")
            return cls(Act(raw["act"]), subjects, str(raw["operator"]))
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteViolation(f"disruption cannot be read: {error!r}") from error


def taken(hold: Hold | None, act: Act, subject: str, operator: str, now: str, at_most: int = 1) -> Hold | None:
    """Return the hold as it is once `subject` has it; None: it is not its turn."""
    if hold is None:
        return Hold(act, {subject: now}, operator)
    if hold.has(act, subject):
        return replace(hold, operator=operator)
    if hold.act is act and len(hold.subjects) < at_most:
        return Hold(act, {**hold.subjects, subject: now}, operator)
    return None


def ended(hold: Hold | None, act: Act, subject: str) -> Hold | None:
    """Return what is left when `subject` is done."""
    if hold is None or not hold.has(act, subject):
        return hold
    left = {name: since for name, since in hold.subjects.items() if name != subject}
    return replace(hold, subjects=left) if left else None


class Disruption:
    """The key of one cluster.  `hold` is what etcd was last seen to say."""

    def __init__(
        self, store: EtcdStore, key: str, operator: str, seen: Callable[[], Hold | None],
        learn: Callable[[str, bytes | None, int], None],
    ) -> None:
        self._store = store
        self._key = key
        self._operator = operator
        self._seen = seen
        self._learn = learn

    @property
    def hold(self) -> Hold | None:
        return self._seen()

    def in_the_way(self, act: Act, subject: str, at_most: int = 1) -> str:
        """Return what `subject` has to wait for, empty for nothing."""
        hold = self.hold
        return "" if taken(hold, act, subject, "", "", at_most) is not None else f"waits for {hold}"

    async def take(self, act: Act, subject: str, at_most: int = 1) -> bool:
        """Have it be the turn of `subject` if it can be, after a look at etcd.  Raises StoreUnavailable."""
        return await self._change(lambda hold: taken(hold, act, subject, self._operator, timestamp(), at_most), False)

    async def end(self, act: Act, subject: str) -> None:
        """`subject` is done, or has given up.  Raises StoreUnavailable."""
        if (hold := self.hold) is not None and hold.has(act, subject):  # what is taken here is seen at once
            await self._change(lambda hold: ended(hold, act, subject), True)

    async def _change(self, change: Callable[[Hold | None], Hold | None], may_delete: bool) -> bool:
        for _attempt in range(ATTEMPTS_MAX):
            item = await self._store.get(self._key)
            try:
                hold = Hold.decode(item.value) if item is not None else None
            except RemoteViolation as error:
                log.error("%s: %s; it is left as it is, and nothing disruptive begins", self._key, error)
                return False
            wanted = change(hold)
            if wanted == hold:
                if item is not None:
                    self._learn(self._key, item.value, item.revision)
                return wanted is not None
            if wanted is None and not may_delete:
                return False
            value = wanted.encode() if wanted is not None else None
            write = Write(self._key, value, item.revision if item is not None else 0)
            match await self._store.transact([write]):
                case Saved(revision):
                    self._learn(self._key, value, revision)
                    log.info("disruption: %s", wanted if wanted is not None else f"{hold} is over")
                    return True
                case Conflict() | Unknown():
                    continue  # read back what came of it
                case outcome:
                    raise StoreUnavailable(outcome.message)
        raise StoreUnavailable("the disruption key is contended")
