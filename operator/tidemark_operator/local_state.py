"""What a local cluster's directory says: `state.json`, the lock, and which ports are free.

Stays out: processes (`process`, `local_processes`).
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from .metadata import Keys
from .process import ProcessId, alive

STATE_FORMAT = 1
LOCK_TIMEOUT_S = 60.0
LOCK_LOOK_S = 0.05
PORTS_VARIABLE = "TIDEMARK_LOCAL_PORTS"
"""Names the first and the last port that local clusters may take, such as 20000-24999."""
PRIVATE_PORTS_FROM, SYSTEM_PORTS_FROM, PORT_MAX = 10_000, 32_768, 65_535
PORTS_APART = 1_009
"""Between the first ports of two processes with neighbouring numbers: more than one of them takes in a while."""


class LocalRuntimeError(Exception):
    """What is wrong, and what to do about it (`advice`)."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


class DamagedState(LocalRuntimeError):
    """`state.json` is there and cannot be understood."""


@dataclass(slots=True)
class ProcessState:
    """One child: how it is run, and which process it was last."""

    command: list[str]
    log: str
    process: ProcessId | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and alive(self.process)


@dataclass(slots=True)
class NodeState(ProcessState):
    node: str = ""
    location: str = ""
    data: str = ""
    ready_file: str = ""
    address: str = ""
    metrics_address: str = ""


@dataclass(slots=True)
class State:
    """What `state.json` holds."""

    cluster: str
    etcd_url: str
    etcd_origin: str
    etcd: ProcessState
    operator: ProcessState
    operator_address: str = ""
    tls: bool = False
    nodes: dict[str, NodeState] = field(default_factory=dict)


def keys_of(cluster: str) -> Keys:
    """Return where in etcd a local cluster lives."""
    return Keys(f"/tidemark/default/{cluster}")


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free at this moment, all different.

    They lie below the ports that the system picks itself: a process that is down finds its port free when it starts
    again.  A process begins at a place of its own and goes on from there, so that two that start clusters at the same
    moment take different ports.  Where the system leaves no such ports, it picks them.
    Raises LocalRuntimeError where `PORTS_VARIABLE` is no range, or too few ports of it are free.
    """
    found: list[int] = []
    ports, begin = _private_ports(), _turn()
    for _ in ports:
        port = ports[next(begin) % len(ports)]
        if port_is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    if given := os.environ.get(PORTS_VARIABLE):
        raise LocalRuntimeError(
            f"{PORTS_VARIABLE}={given} holds {len(found)} free ports; {count} are needed",
            "Name a larger range, or stop what listens there.")
    return _system_ports(count)


def _private_ports() -> range:
    if given := os.environ.get(PORTS_VARIABLE):
        first, _, last = given.partition("-")
        if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) <= PORT_MAX):
            raise LocalRuntimeError(f"{PORTS_VARIABLE}={given} is no range of ports", "Write it as 20000-24999.")
        return range(int(first), int(last) + 1)
    try:
        system = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        system = SYSTEM_PORTS_FROM
    return range(PRIVATE_PORTS_FROM, max(PRIVATE_PORTS_FROM, system))


@cache
def _turn() -> Iterator[int]:
    """Return where in the range the next port lies, counted on through the life of this process."""
    return itertools.count(os.getpid() * PORTS_APART)


def _system_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def load_state(directory: Path) -> State | None:
    """Read `state.json`; None when there is none.  Raises LocalRuntimeError when it cannot be understood."""
    path = directory / "state.json"
    try:
        raw = json.loads(path.read_bytes())
        if raw.pop("format") != STATE_FORMAT:
            raise ValueError("its format is not known to this release")
        return State(
            **{key: raw[key] for key in ("cluster", "etcd_url", "etcd_origin", "operator_address")},
            tls=raw.get("tls", False),
            etcd=ProcessState(**_with_process(raw["etcd"])),
            operator=ProcessState(**_with_process(raw["operator"])),
            nodes={name: NodeState(**_with_process(node)) for name, node in raw["nodes"].items()},
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedState(
            f"{path} cannot be read: {error}",
            "It is of another release or damaged: `tidemark dev down --wipe` stops its processes and deletes the data.",
        ) from error


def _with_process(raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "process": ProcessId(**raw["process"]) if raw["process"] else None}


def save_state(directory: Path, state: State) -> None:
    path = directory / "state.json"
    temporary = directory / ".state.json.new"
    temporary.write_text(json.dumps({"format": STATE_FORMAT, **asdict(state)}, indent=1) + "\n")
    temporary.replace(path)


@contextmanager
def saved(directory: Path, state: State) -> Iterator[None]:
    """Store the state whatever happens inside: a process that was started must not be forgotten."""
    try:
        yield
    finally:
        save_state(directory, state)


@asynccontextmanager
async def locked(directory: Path) -> AsyncIterator[None]:
    """Hold the directory against a second `up`, `start` or `down` at the same moment."""
    with (directory / ".lock").open("w") as lock:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LocalRuntimeError(
                        f"another command is at work in {directory}", "Wait for it to end, then try again."
                    ) from None
                await asyncio.sleep(LOCK_LOOK_S)
        yield
