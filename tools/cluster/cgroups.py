"""Control groups of one run: one below the root of each hierarchy, and in it one for each machine.

Version 1 (one hierarchy for each controller) and version 2 are served alike.  Stays out: what a kubelet makes inside.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
NEEDED = ("cpu", "cpuacct", "cpuset", "memory", "pids")
"""The controllers that a kubelet needs; version 2 counts the time of processors by itself."""
PREFIX = "tidemark-cluster-"
REMOVE_S = 20.0


def version() -> int:
    """Return the version in use, 0 where none is mounted."""
    if (ROOT / "cgroup.controllers").exists():
        return 2
    return 1 if _version_1() else 0


def missing() -> list[str]:
    """Return the controllers that this machine lacks."""
    if version() == 2:
        there = (ROOT / "cgroup.controllers").read_text().split()
        return [name for name in NEEDED if name not in there and name != "cpuacct"]
    there = [name for mount in _version_1() for name in mount[1]]
    return [name for name in NEEDED if name not in there]


def _version_1() -> list[tuple[Path, list[str]]]:
    """Return every hierarchy of version 1: where it is mounted, and its controllers."""
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup":
            found.append((Path(place), options.split(",")))
    return found


def _hierarchies() -> list[Path]:
    return [ROOT] if version() == 2 else [place for place, _ in _version_1()]


def create(run: str, machine: str) -> list[Path]:
    """Make the groups of a machine and return the files that take its first process."""
    files = []
    for hierarchy in _hierarchies():
        parent = hierarchy
        for name in (run, machine):
            if version() == 2:
                controllers = " ".join(f"+{each}" for each in NEEDED if each != "cpuacct")
                (parent / "cgroup.subtree_control").write_text(controllers)
            group = parent / name
            group.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1 begins with none
                if version() == 1 and (group / setting).exists():
                    (group / setting).write_text((parent / setting).read_text())
            parent = group
        files.append(parent / "cgroup.procs")
    return files


def remove(run: str) -> None:
    """Remove the groups of a run whose processes are gone; the kernel needs a moment for that."""
    deadline = time.monotonic() + REMOVE_S
    for hierarchy in _hierarchies():
        for group in [*_below(hierarchy / run)]:
            while group.exists():
                with suppress(OSError):
                    group.rmdir()
                    break
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)


def _below(group: Path) -> Iterator[Path]:
    if group.is_dir():
        for each in group.iterdir():
            if each.is_dir():
                yield from _below(each)
        yield group
