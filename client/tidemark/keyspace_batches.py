"""Many keys in one call: split by the node that coordinates them, and into requests that a node takes.

Stays out: one key (keyspace), which node that is and what happens where it fails (keyspace_calls).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidemark_wire.v1 import keyspaces_pb2 as wire

from .errors import TidemarkError, Unavailable, WritesFailed, WriteUnknown
from .keyspace_calls import Call, KeyspaceCalls
from .keyspace_results import DONE, FUTURE, KeyValue, KeyWritten, named, shown, value_of, written_of
from .routing import Ring

KEYS_MAX = 100
REQUEST_BYTES_MAX = (2 << 20) - 4096
"""Of the items of one request; the rest is for its other fields."""
ITEM_OVERHEAD_BYTES = 8
AT_ONCE = 16
"""Requests of one call that are under way at the same time."""
FAILURES_SHOWN = 3

CallOf = Callable[[Ring, int, bytes, int], Call]
"""Makes a call from its ring, range, first key and number of keys."""


def split(
    ring: Ring, sizes: Mapping[bytes, int], nearest: Callable[[int], str]
) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the coordinator and the keys of each request, as many as a request takes.

    Keys of one range come together: a node writes those of a request at once.
    """
    nodes: dict[int, str] = {}
    open_: dict[str, tuple[list[bytes], int]] = {}
    for index, key in sorted((ring.range_of(key), key) for key in sizes):
        size = sizes[key]
        if index not in nodes:
            nodes[index] = nearest(index)
        node = nodes[index]
        keys, total = open_.get(node, ([], 0))
        total += size + ITEM_OVERHEAD_BYTES
        if keys and (len(keys) >= KEYS_MAX or total > REQUEST_BYTES_MAX):
            yield node, keys
            keys, total = [], size + ITEM_OVERHEAD_BYTES
        keys.append(key)
        open_[node] = keys, total
    for node, (keys, _) in open_.items():
        yield node, keys


async def get_many(
    calls: KeyspaceCalls, ring: Ring, keys: Sequence[bytes], r: int, call_of: CallOf
) -> dict[bytes, KeyValue]:
    """Return the value of each key, in the order given."""
    found: dict[bytes, KeyValue] = {}

    async def get(node: str, some: list[bytes]) -> None:
        while some:
            call = replace(call_of(ring, ring.range_of(some[0]), some[0], len(some)), node=node)
            values = await get_first(calls, call, some, r)
            found.update((value.key, value) for value in values)
            some = some[len(values):]

    await at_once(
        get(*each) for each in
        split(ring, {key: len(key) for key in keys}, lambda index: calls.nearest(ring, index, writes=False)))
    return {key: found[key] for key in keys}


async def get_first(calls: KeyspaceCalls, call: Call, keys: Sequence[bytes], r: int) -> list[KeyValue]:
    """Send one request; return the values of the first of its keys, or of all: a large answer ends early."""
    ring = call.ring
    request = wire.GetStringsRequest(keyspace=ring.name, keyspace_id=ring.keyspace_id, r=r, keys=keys)
    answer: wire.GetStringsResponse = await calls.read(call, "Get", request, _unanswered)
    if not 0 < len(answer.values) <= len(keys):
        raise Unavailable(f"a node answered {len(answer.values)} of {len(keys)} keys of {call.what}")
    return [value_of(ring.name, key, value) for key, value in zip(keys, answer.values, strict=False)]


def _unanswered(answer: wire.GetStringsResponse) -> bool:
    return any(value.outcome not in DONE for value in answer.values)


async def set_many(
    calls: KeyspaceCalls, ring: Ring, items: Mapping[bytes, wire.SetString], w: int, call_of: CallOf
) -> dict[bytes, KeyWritten]:
    """Write each item, and return the answers in the order given; raises WritesFailed where not all are written."""
    written: dict[bytes, KeyWritten] = {}
    failures: dict[bytes, TidemarkError] = {}

    async def set_(node: str, some: list[bytes]) -> None:
        call = replace(call_of(ring, ring.range_of(some[0]), some[0], len(some)), node=node)
        request = wire.SetStringsRequest(
            keyspace=ring.name, keyspace_id=ring.keyspace_id, w=w, items=[items[key] for key in some])
        try:
            answer: wire.SetStringsResponse = await calls.write(call, "Set", request, all_future)
        except TidemarkError as error:
            failures.update((key, _of_key(error, ring.name, key)) for key in some)
            return
        for key, one in zip(some, answer.written, strict=False):
            try:
                written[key] = written_of(ring.name, key, one)
            except TidemarkError as error:
                failures[key] = error
        for key in some[len(answer.written):]:
            what = f"the write of {named(ring.name, key)} has no answer: the node left it out"
            failures[key] = WriteUnknown(what, keyspace=ring.name, key=key)

    await at_once(
        set_(*each) for each in
        split(ring, {key: item.ByteSize() for key, item in items.items()},
              lambda index: calls.nearest(ring, index, writes=True)))
    if not failures:
        return {key: written[key] for key in items}
    first = next(failures[key] for key in items if key in failures)
    if len(items) == 1 or (len(failures) == len(items) and _same_refusal(failures.values())):
        raise first
    names = ", ".join(shown(key) for key in list(failures)[:FAILURES_SHOWN])
    raise WritesFailed(
        f"{len(failures)} of {len(items)} keys of keyspace {ring.name!r} are not written for certain: {names}"
        f"{' ...' if len(failures) > FAILURES_SHOWN else ''} ({first.reason}: {first.message})",
        written=written, failures=failures)


def _same_refusal(errors: Iterable[TidemarkError]) -> bool:
    """Say whether all keys ended with the same error, and nothing was begun."""
    kinds = {(type(error), error.reason) for error in errors}
    return len(kinds) == 1 and not any(issubclass(kind, WriteUnknown) for kind, _ in kinds)


def all_future(answer: wire.SetStringsResponse) -> bool:
    """Say whether nothing was stored, because the node's clock is ahead."""
    return bool(answer.written) and all(one.outcome == FUTURE for one in answer.written)


def _of_key(error: TidemarkError, keyspace: str, key: bytes) -> TidemarkError:
    """Return the error of a request as that of one of its keys."""
    return WriteUnknown(error.message, keyspace=keyspace, key=key) if isinstance(error, WriteUnknown) else error


async def at_once(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run requests, a few at the same time; the first error ends the others."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(each: Coroutine[Any, Any, None]) -> None:
        async with room:
            await each

    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(one(each), name="tidemark-keyspace-batch")
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
