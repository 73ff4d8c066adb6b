"""One round of append throughput on a cluster of its own, run by the packages that PYTHONPATH names.

Stays out: choosing the packages (`build_before`); we only refuse to measure others than those named.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import tidemark
import tidemark_core
import tidemark_node
import tidemark_operator

from .. import cluster as clusters
from ..append_throughput import CONFIGURATIONS, append
from ..context import Context


def _check_ours(packages: Path) -> None:
    """Raise RuntimeError when this process has other packages."""
    for module in (tidemark, tidemark_core, tidemark_node, tidemark_operator):
        if Path(str(module.__file__)).parents[2] != packages:
            raise RuntimeError(f"{module.__name__} is from {module.__file__}, not from {packages}")


def _check_theirs(cluster: clusters.Cluster, packages: Path) -> None:
    """Raise RuntimeError when a process of the cluster has other packages."""
    for name, process in cluster.processes().items():
        path = process.environ().get("PYTHONPATH", "")
        if name != "etcd" and Path(path.split(os.pathsep)[0]).parent != packages:
            raise RuntimeError(f"{name} has the packages of {path!r}, not of {packages}")


def main(directory: str, packages: str, seconds: int) -> None:
    """Print what the appending client says, with the processor time of each process."""
    _check_ours(Path(packages))
    with clusters.running(Context(Path(directory))) as cluster:
        _check_theirs(cluster, Path(packages))
        said = append(cluster, CONFIGURATIONS[0], seconds)
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
