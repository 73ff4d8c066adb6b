"""The slice of the machine's ports that a worker's tests take: two workers never pick the same one."""

from __future__ import annotations

from collections.abc import MutableMapping

from .janitor import WORKER

COUNT = "PYTEST_XDIST_WORKER_COUNT"
VARIABLE = "TIDEMARK_LOCAL_PORTS"
"""Where local clusters and the tests' servers take ports (`tidemark_operator.local_state`, which loads much)."""
PORTS = range(10_000, 32_768)
"""Below those that the system picks itself."""


def take(environment: MutableMapping[str, str]) -> None:
    """Name the slice in the environment of a worker, which its processes inherit."""
    if worker := environment.get(WORKER):
        count = int(environment[COUNT])
        size = len(PORTS) // count
        first = PORTS[int(worker.removeprefix("gw")) % count * size]
        environment[VARIABLE] = f"{first}-{first + size - 1}"
