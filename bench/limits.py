"""limits: what disk, loopback and an empty gRPC call can do here, measured by the simplest program that does it.

Other benchmarks call the functions of this module next to their own measurement, so that both see the same machine.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from .context import Context
from .disk_limit import measure
from .figures import Outcome, number, spread
from .processes import run_worker, worker

SUMMARY = "fdatasync, sequential write, the nodes' writes, loopback, a bare gRPC stream, empty gRPC echo"

MIB = 1 << 20
GROUP_BYTES = 3 * MIB // 2
"""About what a node syncs at once under full load."""


def fdatasync_ms(directory: Path, seconds: float, block_bytes: int = 1024) -> list[float]:
    """Return the time of each append of a block, 1 KiB unless told, plus fdatasync."""
    path, block, times_ms = directory / "fdatasync", os.urandom(block_bytes), []
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            os.write(file, block)
            os.fdatasync(file)
            times_ms.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(file)
        path.unlink()
    return times_ms


def sequential_write_mb_per_second(directory: Path, mib: int) -> float:
    """Write a file of `mib` MiB by the MiB, fsync it at the end; MB (10^6) per second."""
    path, block = directory / "sequential", os.urandom(MIB)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        began = time.perf_counter()
        for _ in range(mib):
            os.write(file, block)
        os.fsync(file)
        return mib * MIB / 1e6 / (time.perf_counter() - began)
    finally:
        os.close(file)
        path.unlink()


def loopback_mb_per_second(seconds: float) -> float:
    """Send 1 MiB buffers over one TCP connection between two threads; MB (10^6) per second."""
    listener = socket.create_server(("127.0.0.1", 0))
    received = 0

    def receive() -> None:
        nonlocal received
        accepted, _ = listener.accept()
        buffer = bytearray(MIB)
        with accepted:
            while count := accepted.recv_into(buffer):
                received += count

    receiver = threading.Thread(target=receive)
    receiver.start()
    block, began = bytes(MIB), time.perf_counter()
    with listener, socket.create_connection(listener.getsockname()) as sender:
        while time.perf_counter() - began < seconds:
            sender.sendall(block)
        sender.shutdown(socket.SHUT_WR)
        receiver.join()
    return received / 1e6 / (time.perf_counter() - began)


def echo(mode: str, clients: int, seconds: float, message_bytes: int = 0) -> dict[str, Any]:
    """Return `seconds` and `times_ms` of calls to an echo server in a process of its own."""
    with worker("echo_server") as server:
        return run_worker(
            "echo_client", address=server.read()["address"], mode=mode, clients=clients, seconds=seconds,
            message_bytes=message_bytes,
        )


def grpc_mb_per_second(seconds: float) -> float:
    """One stream of 1 MiB messages between two processes that do nothing else; MB (10^6) per second."""
    told = echo("source", 1, seconds, MIB)
    return float(len(told["times_ms"]) * MIB / 1e6 / told["seconds"])


def run(context: Context) -> Outcome:
    outcome = Outcome("limits", "What this machine can do")
    seconds = context.seconds(full=5, quick=1)
    mib = 4096 if not context.quick else 512
    sync_ms = fdatasync_ms(context.directory, seconds)
    write = sequential_write_mb_per_second(context.directory, mib)
    with context.scratch("disk") as directory:
        disk = measure(directory, GROUP_BYTES, seconds)
    loopback = loopback_mb_per_second(seconds)
    unary, stream = echo("unary", 1, seconds), echo("stream", 1, seconds, 1024)
    many, grpc = echo("unary", 64, seconds), grpc_mb_per_second(seconds)
    outcome.add("fdatasync of a 1 KiB append, p50", spread(sync_ms)["p50"], "ms")
    outcome.add("fdatasync of a 1 KiB append, p99", spread(sync_ms)["p99"], "ms")
    outcome.add(f"sequential write, {mib} MiB, fsync at the end", write, "MB/s")
    outcome.add(
        "three writers that sync and write tables as nodes do, each", disk.mb_per_second, "MB/s",
        basis=f"limit of appends; groups of {disk.group_kib:.0f} KiB, {number(disk.written_per_byte)} bytes for each",
    )
    outcome.add("loopback TCP, one connection", loopback, "MB/s")
    outcome.add("grpc.aio, one stream of 1 MiB messages", grpc, "MB/s")
    outcome.add("empty grpc.aio unary echo, 1 client, p50", spread(unary["times_ms"])["p50"], "ms")
    outcome.add("grpc.aio echo on an open stream, 1 KiB, p50", spread(stream["times_ms"])["p50"], "ms")
    outcome.add("empty grpc.aio unary echo, 64 clients", len(many["times_ms"]) / many["seconds"], "calls/s")
    outcome.configuration = {"seconds_each": seconds, "echo": "server and clients in two processes, uvloop"}
    outcome.samples = {
        "fdatasync_ms": sync_ms, "sequential_mb_per_second": [write], "disk_limit_mb_per_second": [disk.mb_per_second],
        "loopback_mb_per_second": [loopback],
        "grpc_mb_per_second": [grpc],
        "echo_unary_ms": unary["times_ms"], "echo_stream_ms": stream["times_ms"], "echo_64_ms": many["times_ms"],
    }
    return outcome
