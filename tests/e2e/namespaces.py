"""A network of its own for a test: nodes in network namespaces, each with one cable to a bridge, which can be pulled.

A pulled cable loses packets and tells nobody, as between hosts: no socket is closed, nothing is refused.  All of it
lives in namespaces of one process (`enter`), so it is gone with that process and the machine's own network is not
touched.
Stays out: which processes run where (`inside_namespaces`).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

PROGRAMS = ("ip", "unshare", "nsenter", "mount", "sh")
BRIDGE, HERE = "bridge", "10.77.0.1"
WAYS = (
    ("unshare", "--net", "--mount"),                                # with CAP_SYS_ADMIN
    ("unshare", "--user", "--map-root-user", "--net", "--mount"),   # where users may make namespaces
)
INSIDE = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")
TRIAL = (
    "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip netns add trial && ip link add name bridge type bridge"
    " && ip link add one type veth peer name two netns trial && ip link set one master bridge"
)


def way_in() -> tuple[str, ...] | str:
    """Return the command in front of one that is to run in namespaces of its own, or why there can be none."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"network namespaces need the programs {', '.join(missing)} (iproute2, util-linux)"
    refused = []
    for way in WAYS:
        tried = subprocess.run([*way, *INSIDE, "sh", "-c", TRIAL], capture_output=True, text=True, timeout=30)
        if tried.returncode == 0:
            return *way, *INSIDE
        refused.append(f"{' '.join(way)}: {tried.stderr.strip()}")
    return (
        "network namespaces are permitted neither by CAP_SYS_ADMIN and CAP_NET_ADMIN (root) nor by unprivileged user "
        f"namespaces (kernel.unprivileged_userns_clone, user.max_user_namespaces): {'; '.join(refused)}"
    )


class Cables:
    """The bridge and one cable to each name; made in a process that runs behind `way_in`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._number_of = {name: number for number, name in enumerate(names)}
        _run("mount", "-t", "tmpfs", "tmpfs", "/run")               # names of namespaces lie there, and ours alone
        _run("mkdir", "/run/netns")
        _run("ip", "link", "add", "name", BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{HERE}/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        for name in names:
            inside, cable = self._inside(name), self._cable(name)
            _run("ip", "netns", "add", inside)
            _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", inside)
            _run("ip", "link", "set", cable, "master", BRIDGE)
            _run("ip", "-n", inside, "link", "set", "lo", "up")
            _run("ip", "-n", inside, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            _run("ip", "-n", inside, "link", "set", "eth0", "up")
        self.mend()

    def address(self, name: str) -> str:
        return f"10.77.0.{10 + self._number_of[name]}"

    def prefix(self, name: str) -> list[str]:
        """Return what goes in front of the command of a process that is to be at the end of this cable."""
        return ["nsenter", f"--net=/run/netns/{self._inside(name)}"]

    def pull(self, name: str) -> None:
        _run("ip", "link", "set", self._cable(name), "down")

    def mend(self) -> None:
        for name in self._number_of:
            _run("ip", "link", "set", self._cable(name), "up")

    def _inside(self, name: str) -> str:
        return f"inside{self._number_of[name]}"

    def _cable(self, name: str) -> str:
        return f"cable{self._number_of[name]}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
