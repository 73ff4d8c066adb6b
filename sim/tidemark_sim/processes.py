"""Seeds beside each other, in processes: results in order, and an end when a process dies.

Stays out: what a seed is (`runner`), what becomes of its result (`__main__`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from .runner import Result

AHEAD = 16
"""How many seeds for each process are under way at once: what a long run holds stays small."""


def in_processes(run: Callable[[int], Result], seeds: range, jobs: int) -> Generator[Result]:
    """Give the results in the order of the seeds; when a process dies, name the seeds without one and end."""
    left = iter(seeds)
    under_way: deque[tuple[int, Future[Result]]] = deque()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin) as pool:
        try:
            while True:
                under_way.extend((seed, pool.submit(run, seed)) for seed in islice(left, AHEAD * jobs - len(under_way)))
                if not under_way:
                    return
                yield under_way[0][1].result()
                under_way.popleft()
        except BrokenProcessPool:
            without = [seed for seed, future in under_way if not future.done() or future.exception()]
            print(
                "A process of the simulator died; the system kills one when memory runs out.\n"
                f"Seeds that ran: {', '.join(map(str, without[:jobs]))}.  Run each one alone to find the cause.\n"
                f"Seeds {under_way[0][0]} to {seeds[-1]} are not judged.", file=sys.stderr, flush=True)
        except BaseException:
            for child in multiprocessing.active_children():
                child.kill()
            raise


def _begin() -> None:
    """Leave Ctrl-C to the parent, and end with it, also when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
