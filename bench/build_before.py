"""The build before: the same throughput, measured on the packages of an earlier commit, on the same machine at once.

The commit's packages are unpacked next to the data and put in front of Python's path, so that client, nodes and
operator are all of that build; the benchmark's own code is the same for both.  Stays out: comparing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .context import Context
from .processes import ROOT, run_worker

BASE = "5afb1b6"
"""The last commit without a limbo."""

PACKAGES = ("cli", "client", "core", "node", "operator", "protos", "sim")


@contextmanager
def tree(context: Context, commit: str = BASE) -> Iterator[Path | str]:
    """Give the folder with the packages of a commit, or a sentence that says why there is none."""
    with context.scratch("before") as directory:
        archive = directory / "packages.tar"
        for command in (
            ("git", "-C", str(ROOT), "archive", "--output", str(archive), commit, *PACKAGES),
            ("tar", "-x", "-f", str(archive), "-C", str(directory)),
        ):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            except FileNotFoundError:
                yield f"there is no {command[0]} here"
                return
            if done.returncode:
                yield f"{command[0]} says: {done.stderr.strip()}"
                return
        archive.unlink()
        # Builds before `tidemark_wire.version` asked the environment for the version of this distribution.
        metadata = directory / "client" / "tidemark-0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: tidemark\nVersion: 0\n", encoding="utf-8")
        yield directory


def throughput(context: Context, packages: Path, seconds: int) -> dict[str, Any]:
    """Append for `seconds` to a cluster whose processes all run the packages in that folder."""
    path = os.pathsep.join(str(packages / name) for name in PACKAGES)
    return run_worker(
        "throughput_round", {"PYTHONPATH": path}, directory=str(context.directory), packages=str(packages),
        seconds=seconds,
    )
