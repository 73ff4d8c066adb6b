"""`python -m bench.against COMMIT NAME ...`: this checkout against an earlier commit, in turns, in one run.

Each round runs every benchmark in a checkout of the commit and in this one, and the next round swaps the order, so that
drift of the machine touches both. The result is the ratio of the medians of each figure, above 1 where this checkout is
better. Stays out: measuring; each checkout runs its own `python -m bench --json`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import machine, report
from .figures import number
from .processes import ROOT

HOUSES = ("cli", "client", "core", "node", "operator", "protos", "sim", "spark")
LOWER_IS_BETTER = frozenset({"us", "ms", "s", "s/GiB", "KiB", "MiB", "yardsticks", "bytes"})
DISTRIBUTIONS = ("tidemark", "tidemarkdb")
"""Names under which a checkout asks for its own version; a checkout that is not installed gets them as metadata."""

Samples = dict[tuple[str, str, str], list[float]]
"""Values by benchmark, figure and unit."""


def check_out(commit: str, directory: Path) -> Path:
    """Put the files of a commit below `directory`, with metadata that names its version.

    Raises SystemExit when git does not have the commit.
    """
    archive = directory / "commit.tar"
    command = ("git", "-C", str(ROOT), "archive", "--output", str(archive), commit)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git cannot give the files of commit {commit}: {done.stderr.strip()}")
    tree = directory / "commit"
    with tarfile.open(archive) as files:
        files.extractall(tree, filter="data")
    archive.unlink()
    for name in DISTRIBUTIONS:
        metadata = tree / f"{name}-0.1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    return tree


def measure(tree: Path, name: str, *, quick: bool) -> Samples:
    """Run one benchmark of a checkout and return its figures; raise SystemExit if it cannot run."""
    path = os.pathsep.join(str(tree / house) for house in (*HOUSES, "."))
    with tempfile.TemporaryDirectory(dir=ROOT / ".tidemark", prefix="bench-against-") as scratch:
        command = (sys.executable, "-m", "bench", name, "--json", "--dir", scratch, *(("--quick",) if quick else ()))
        done = subprocess.run(
            command, cwd=tree, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} in {tree} ended with exit code {done.returncode}")
    outcome = json.loads(done.stdout)["outcomes"][0]
    return {(name, figure["what"], figure["unit"]): [figure["value"]] for figure in outcome["figures"]}


def ratio(unit: str, before: float, after: float) -> float:
    """Return how much better `after` is: above 1 is better, whichever direction the unit has."""
    better, worse = (before, after) if unit in LOWER_IS_BETTER else (after, before)
    return better / worse if worse else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("names", nargs="+", metavar="NAME", help="benchmarks of python -m bench")
    parser.add_argument("--rounds", type=int, default=5, help="how often each checkout is measured (default 5)")
    parser.add_argument("--quick", action="store_true", help="the short form of each benchmark")
    arguments = parser.parse_args()
    (ROOT / ".tidemark").mkdir(exist_ok=True)
    described = machine.describe(ROOT)
    found: dict[str, Samples] = {"before": {}, "after": {}}
    with tempfile.TemporaryDirectory(dir=ROOT / ".tidemark", prefix="bench-before-") as scratch:
        trees = {"before": check_out(arguments.commit, Path(scratch)), "after": ROOT}
        for round_number in range(arguments.rounds):
            for name in arguments.names:
                for side in ("before", "after") if round_number % 2 == 0 else ("after", "before"):
                    said = f"round {round_number + 1} of {arguments.rounds}: {name}, {side}"
                    print(f"  {said}", file=sys.stderr, flush=True)
                    for key, values in measure(trees[side], name, quick=arguments.quick).items():
                        found[side].setdefault(key, []).extend(values)
    rows: list[dict[str, Any]] = [
        {
            "benchmark": key[0], "what": key[1], "unit": key[2], "before": found["before"][key], "after": values,
            "ratio": ratio(key[2], statistics.median(found["before"][key]), statistics.median(values)),
        }
        for key, values in found["after"].items() if key in found["before"]
    ]
    table = Table("benchmark", "what", "before", "after", "unit", "ratio", box=None, pad_edge=False)
    for row in rows:
        medians = (number(statistics.median(row[side])) for side in ("before", "after"))
        table.add_row(row["benchmark"], row["what"], *medians, row["unit"], f"{row['ratio']:.2f}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    told: dict[str, Any] = {
        "at": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "command": " ".join(["python", "-m", "bench.against", *sys.argv[1:]]),
        "machine": described, "commit_before": arguments.commit, "rows": rows,
    }
    name = "-".join((arguments.commit, *arguments.names))
    path = report.AGAINST / f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}-{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(report.compact(told))
    print(f"written: {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
