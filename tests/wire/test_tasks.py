"""Tasks that are ended: also those whose first cancel is lost, and what they failed with."""

from __future__ import annotations

import asyncio

from tidemark_wire.tasks import cancelled


async def test_a_task_that_loses_a_cancel_is_asked_again():
    async def deaf() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        assert await cancelled(task, None) == []
    assert task.cancelled()


async def test_what_tasks_failed_with_is_returned():
    async def failing() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("at its end")

    task, ended = asyncio.create_task(failing()), asyncio.create_task(asyncio.sleep(0))
    await asyncio.sleep(0)
    (error,) = await cancelled(task, ended)
    assert isinstance(error, KeyError)


async def test_nothing_to_end():
    assert await cancelled() == []
