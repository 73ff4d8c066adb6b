"""The pin of a query: made when it is planned, its lease long while tasks wait and read, short behind the last one.

A shard has few pins at a time, so those of queries that are over must not stay for long.
Stays out: reading at pins (the tasks of a mode).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.sync import SyncClient, SyncDocuments, SyncPin

log = logging.getLogger("pyspark_tidemark")

PARTS = 3
"""A lease is renewed when so small a part of it is over."""

RETRIED_S = 60.0
"""Seconds for which a shard stays pinned behind its task, for a task that is tried again and a second use of a plan."""

ANSWER_S = 5.0
"""Seconds until a leader that does not answer is asked the next time."""

RELEASE_S = 1.0
"""Seconds until a shard that does not answer keeps a pin: a query must not wait for it."""


def pin_now(
    client: SyncClient, group: str, documents: SyncDocuments, lease_s: float, shards: Sequence[int] | None = None
) -> SyncPin:
    """Pin all or some shards under a name of its own; where one does not answer, no other keeps the pin.

    Raises TidemarkError.
    """
    name = f"spark-{uuid.uuid4().hex}"
    try:
        return documents.pin(name, lease_s, shards=shards)
    except BaseException:
        release(client, group, [name], shards)
        raise


def release(client: SyncClient, group: str, names: Iterable[str], shards: Sequence[int] | None = None) -> None:
    """End pins on all or some shards, those that answer at once; elsewhere they end by their lease."""
    from tidemark.errors import TidemarkError

    with client.documents(group, timeout_s=RELEASE_S) as documents:
        for name in names:
            try:
                documents.unpin(name, shards=shards)
            except TidemarkError as error:
                log.info("pin %s ends by its lease: %s", name, error)


@dataclass(frozen=True, slots=True)
class Pinned:
    """A pin of the shards that have tasks, as these get it."""

    name: str
    seqnos: Mapping[int, int]   # of the cuts, by shard
    since: float                # seconds since 1970, by the driver's clock


@contextmanager
def renewed(
    client: SyncClient, group: str, pinned: Pinned, shard: int, lease_s: float, *, releases: bool = True
) -> Iterator[None]:
    """Renew the lease for all shards until the block, which reads one of them, is left.

    With `releases` that shard's lease then ends soon, unless the block failed and will be tried again.
    """
    with client.documents(group, timeout_s=ANSWER_S) as documents:
        from tidemark.errors import TidemarkError

        # Shard by shard: one whose task is done ends before the others, and renewing it would begin another pin.
        pins = {each: documents.pin_at(pinned.name, {each: seqno}) for each, seqno in pinned.seqnos.items()}
        over = threading.Event()
        thread = threading.Thread(
            target=_renew, args=(pins, lease_s, pinned.since, over), name="tidemark-pin", daemon=True)
        thread.start()
        read = False
        try:
            yield
            read = True
        except GeneratorExit:   # Spark has enough rows
            read = True
            raise
        finally:
            over.set()
            if read and releases:
                thread.join()   # a renewal that is under way takes ANSWER_S at most, and must not come last
                with suppress(TidemarkError):
                    documents.pin_at(pinned.name, {shard: pinned.seqnos[shard]}).renew(min(RETRIED_S, lease_s))


def _renew(pins: dict[int, SyncPin], lease_s: float, since: float, over: threading.Event) -> None:
    """Renew the pins of shards until `over`; one that has ended is left out, and what is read there says so."""
    from tidemark.errors import NotPinned, TidemarkError

    part_s = lease_s / PARTS
    wait_s = min(part_s, max(0.0, since + part_s - time()))
    while not over.wait(wait_s):
        wait_s = part_s
        for shard, pin in list(pins.items()):
            try:
                pin.renew(lease_s)
            except NotPinned:
                del pins[shard]
            except TidemarkError as error:
                if not over.is_set():
                    log.warning("the lease of pin %s on shard %d was not renewed: %s", pin.name, shard, error)
            if over.is_set():
                return
