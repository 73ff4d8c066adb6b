"""Processes of a benchmark: start a module of `bench.workers`, talk to it in JSON lines, never leave one behind.

Stays out: what the workers do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# Python and gRPC allocate and free buffers of a megabyte all the time; kept memory saves a page fault for each.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_TOP_PAD_": str(64 << 20),
}


NO_MORE: Mapping[str, str] = MappingProxyType({})


class WorkerFailed(Exception):
    """A worker ended without its result; the message holds what it said."""


class Worker:
    """A running worker."""

    def __init__(
        self, module: str, arguments: dict[str, Any], environment: Mapping[str, str], prefix: Sequence[str] = ()
    ) -> None:
        self.module = module
        self.process = subprocess.Popen(
            (*prefix, sys.executable, "-m", f"bench.workers.{module}", json.dumps(arguments)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, **ALLOCATOR, **environment},
        )

    def read(self) -> dict[str, Any]:
        """Return the next JSON line; raises WorkerFailed when there is none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise WorkerFailed(f"worker {self.module} ended with exit code {self.process.wait()}, see its output above")
        document: dict[str, Any] = json.loads(line)
        return document

    def tell(self, line: str) -> None:
        """Send one line to the worker's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """Close its standard input, which ends every worker; kill it when it does not listen."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@contextmanager
def worker(
    module: str, environment: Mapping[str, str] = NO_MORE, prefix: Sequence[str] = (), /, **arguments: Any
) -> Iterator[Worker]:
    """Run a worker, behind the command `prefix`, for as long as the block lasts; `environment` is added to ours."""
    started = Worker(module, arguments, environment, prefix)
    try:
        yield started
    finally:
        started.stop()


def run_worker(module: str, environment: Mapping[str, str] = NO_MORE, /, **arguments: Any) -> dict[str, Any]:
    """Run a worker to its end and return its one result."""
    with worker(module, environment, **arguments) as started:
        return started.read()
