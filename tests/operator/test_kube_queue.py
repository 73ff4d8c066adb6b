"""The operator's queue of keys: never the same key twice at once, nothing asked for is lost, failures are retried."""

from __future__ import annotations

import asyncio
from collections import Counter

import uvloop
from tidemark_operator.kube.queue import Key, KeyedQueue, Later

from tests.waiting import until

A, B = ("cluster", "data", "a"), ("cluster", "data", "b")


class Work:
    """Counts what is done, holds it up while `open` is not set, fails as often as it is told to."""

    def __init__(self) -> None:
        self.done: Counter[Key] = Counter()
        self.at_once: Counter[Key] = Counter()
        self.most: Counter[Key] = Counter()
        self.failures: list[Exception] = []
        self.open = asyncio.Event()
        self.open.set()
        self.finished = asyncio.Event()

    async def __call__(self, key: Key) -> None:
        self.at_once[key] += 1
        self.most[key] = max(self.most[key], self.at_once[key])
        try:
            await self.open.wait()
            if self.failures:
                raise self.failures.pop()
            self.done[key] += 1
            self.finished.set()
        finally:
            self.at_once[key] -= 1

    async def until(self, count: int, key: Key = A) -> None:
        while self.done[key] < count:
            self.finished.clear()
            await self.finished.wait()


async def test_what_is_asked_for_often_is_done_once() -> None:
    work = Work()
    queue = KeyedQueue(work, workers=2)
    for _ in range(100):
        queue.add(A)
    queue.add(B)
    queue.start()
    await work.until(1)
    await work.until(1, B)
    await queue.stop()
    assert work.done == {A: 1, B: 1}


async def test_what_is_asked_for_while_it_runs_is_done_again_behind_it() -> None:
    work = Work()
    work.open.clear()
    queue = KeyedQueue(work, workers=4)
    queue.start()
    queue.add(A)
    while not work.at_once[A]:
        await asyncio.sleep(0)
    for _ in range(10):
        queue.add(A)
    queue.add(B)
    while not work.at_once[B]:  # another key is not held up
        await asyncio.sleep(0)
    work.open.set()
    await work.until(2)
    await queue.stop()
    assert work.done[A] == 2
    assert work.most[A] == 1


async def test_a_failure_is_retried_and_other_keys_go_on() -> None:
    work = Work()
    work.failures = [RuntimeError("broken"), Later("not yet")]
    queue = KeyedQueue(work, workers=1)
    queue.start()
    queue.add(A)
    await work.until(1)
    queue.add(B)
    await work.until(1, B)
    await queue.stop()
    assert work.done[A] == 1


async def test_the_earliest_of_several_times_counts() -> None:
    work = Work()
    queue = KeyedQueue(work)
    queue.start()
    queue.add_after(A, 3600)
    queue.add_after(A, 0.01)
    queue.add_after(A, 3600)
    await work.until(1)
    queue.add_after(B, 3600)
    queue.add(B)  # takes the place of what was put off
    await work.until(1, B)
    await asyncio.sleep(0)
    await queue.stop()
    assert work.done == {A: 1, B: 1}


def test_what_is_due_in_no_time_may_be_asked_for_again_on_the_loop_of_pods() -> None:
    async def story() -> Counter[Key]:
        work = Work()
        queue = KeyedQueue(work)
        queue.start()
        queue.add_after(A, 0.0)     # uvloop makes no timer of it
        queue.add_after(A, 3600)
        await work.until(1)
        await queue.stop()
        return work.done

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(story()) == {A: 1}


async def test_how_long_the_first_has_waited_is_told() -> None:
    work = Work()
    work.open.clear()
    queue = KeyedQueue(work, workers=1)
    assert queue.oldest_s() == 0
    queue.start()
    queue.add(A)
    while not work.at_once[A]:
        await asyncio.sleep(0)
    assert queue.oldest_s() == 0, "what is worked on does not wait"
    queue.add(B)
    queue.add(A)
    first = queue.oldest_s()
    assert first >= 0
    await until(lambda: queue.oldest_s() > first)
    work.open.set()
    await work.until(1, B)
    await work.until(2)
    assert queue.oldest_s() == 0
    await queue.stop()


async def test_work_that_never_waits_leaves_the_loop_its_turns() -> None:
    """Fifty clusters looked at in a row would be seconds in which no lease is kept and no answer is heard."""
    turn, began = 0, list[int]()

    async def work(_key: Key) -> None:
        began.append(turn)

    queue = KeyedQueue(work)
    for number in range(50):
        queue.add(("show", "data", str(number)))
    queue.start()
    async with asyncio.timeout(20):
        while len(began) < 50:
            turn += 1
            await asyncio.sleep(0)
    await queue.stop()
    assert len(set(began)) == 50, "one to a turn"
