"""Checks of what this machine must permit for machines of our own; each gives the reason in words.

Stays out: what can be built when it is missing (programs by Go, trees by debootstrap).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from . import cgroups, debian
from .places import REPOSITORY

COMMANDS = ("bash", "chroot", "ip", "mount", "nice", "nsenter", "setpriv", "unshare")
FREE_DISK_GIB, FREE_MEMORY_GIB = 8, 4
PROBE_S = 30
OVERLAY = """\
set -e
mount -t tmpfs tmpfs "$1" && cd "$1" && mkdir lower upper work root
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work root
"""
VETH = "ip link add probe0 type veth peer name probe1 && ip link add probe2 type bridge"
DEVICE = 'mount -t tmpfs tmpfs "$1" && mknod "$1/null" c 1 3 && echo > "$1/null"'
NF_TABLES = """\
nft add table inet probe
nft add chain inet probe dropped '{ type filter hook forward priority -300; policy accept; }'
nft add rule inet probe dropped ip saddr 10.77.1.1 ip daddr 10.77.1.2 drop
nft add map ip probe ports '{ type inet_service : verdict; }' 2>/dev/null || nft add table ip probe
nft add chain ip probe translate '{ type nat hook prerouting priority -100; }'
nft add rule ip probe translate tcp dport 80 dnat to numgen random mod 2 map '{ 0 : 10.77.1.1, 1 : 10.77.1.2 }'
"""
"""The parts of nf_tables that the cuts and kube-proxy use."""


def missing() -> list[str]:
    """Return what is missing, one sentence each; none: go on."""
    if sys.platform != "linux":
        return ["machines of our own need Linux"]
    if os.geteuid() != 0:
        return ["root: namespaces, mounts and control groups of machines need it"]
    lacking = [f"the command {name}" for name in COMMANDS if shutil.which(name) is None]
    return lacking or [reason for check in _CHECKS for reason in check()]


def missing_in(tree: Path) -> list[str]:
    """Return what the kernel lacks for programs of a Debian tree."""
    found = _probe("nf_tables", NF_TABLES, ["unshare", "--net", "--", *debian.enter(tree)])
    return [found] if found else []


def _disk_and_memory() -> Iterator[str]:
    free = shutil.disk_usage(tempfile.gettempdir()).free >> 30
    if free < FREE_DISK_GIB:
        yield f"{FREE_DISK_GIB} GiB free below {tempfile.gettempdir()} ({free} GiB are)"
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:") and int(line.split()[1]) >> 20 < FREE_MEMORY_GIB:
            yield f"{FREE_MEMORY_GIB} GiB of free memory ({int(line.split()[1]) >> 20} GiB are)"


def _control_groups() -> Iterator[str]:
    if cgroups.version() == 0:
        yield f"control groups below {cgroups.ROOT}"
    elif lacking := cgroups.missing():
        yield f"the control group controllers {', '.join(lacking)}"
    elif not os.access(cgroups.ROOT, os.W_OK):
        yield f"control groups that can be written ({cgroups.ROOT} is read-only)"


def _kernel() -> Iterator[str]:
    for name, script, prefix in (
        ("overlay mounts", OVERLAY, ["unshare", "--mount", "--propagation=private", "--"]),
        ("device files", DEVICE, ["unshare", "--mount", "--propagation=private", "--"]),
        ("network namespaces with veth and bridge", VETH, ["unshare", "--net", "--"]),
        ("PID, UTS, IPC and cgroup namespaces", "true", [
            "unshare", "--pid", "--fork", "--uts", "--ipc", "--cgroup", "--"]),
    ):
        if found := _probe(name, script, prefix):
            yield found


def _programs() -> Iterator[str]:
    if reason := debian.available():
        yield reason
    if not (REPOSITORY / "charts").is_dir():
        yield "a checkout with charts/"


_CHECKS: tuple[Callable[[], Iterator[str]], ...] = (_disk_and_memory, _control_groups, _kernel, _programs)


def _probe(name: str, script: str, prefix: list[str]) -> str | None:
    """Try a script in namespaces of its own and return why it failed."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            tried = subprocess.run(
                [*prefix, "bash", "-ec", script, "bash", folder], capture_output=True, text=True, timeout=PROBE_S,
                check=False)
        except subprocess.TimeoutExpired:
            return f"{name} (the probe did not end)"
    if not tried.returncode:
        return None
    *_, reason = ["", *tried.stderr.strip().splitlines()]
    return f"{name} ({reason or f'exit code {tried.returncode}'})"
