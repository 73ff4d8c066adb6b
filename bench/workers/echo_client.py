"""Clients of the empty echo: `clients` channels of their own, one call in flight on each, for `seconds`.

In the mode `source` each reads one stream of the same message over and over.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from tidemark.loop import run
from tidemark_wire import channel

from .echo_server import SOURCE, STREAM, UNARY


async def _unary(opened: Any, message: bytes, until: float, times_ms: list[float]) -> None:
    call = opened.unary_unary(UNARY)
    while (began := time.perf_counter()) < until:
        await call(message)
        times_ms.append((time.perf_counter() - began) * 1000)


async def _stream(opened: Any, message: bytes, until: float, times_ms: list[float]) -> None:
    call = opened.stream_stream(STREAM)()
    while (began := time.perf_counter()) < until:
        await call.write(message)
        await call.read()
        times_ms.append((time.perf_counter() - began) * 1000)
    call.cancel()


async def _source(opened: Any, message: bytes, until: float, times_ms: list[float]) -> None:
    call = opened.unary_stream(SOURCE)(message)
    while (began := time.perf_counter()) < until:
        await call.read()
        times_ms.append((time.perf_counter() - began) * 1000)
    call.cancel()


async def main(address: str, mode: str, clients: int, seconds: float, message_bytes: int) -> None:
    """Print the time of every call in milliseconds, and how long the whole took."""
    exchange = {"unary": _unary, "stream": _stream, "source": _source}[mode]
    channels = [channel.open_channel(address) for _ in range(clients)]
    await asyncio.gather(*(opened.channel_ready() for opened in channels))
    message = bytes(message_bytes)
    await asyncio.gather(*(exchange(opened, message, time.perf_counter() + 0.3, []) for opened in channels))
    times_ms: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(exchange(opened, message, began + seconds, times_ms) for opened in channels))
    print(json.dumps({"seconds": time.perf_counter() - began, "times_ms": times_ms}), flush=True)
    await asyncio.gather(*(opened.close() for opened in channels))


if __name__ == "__main__":
    run(main(**json.loads(sys.argv[1])))
