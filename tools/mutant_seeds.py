"""Find the seeds that catch the simulator's mutants: `python tools/mutant_seeds.py`, or `make mutants`.

A seed draws another run as soon as a profile or a fault changes.  Then the seeds in `tests/sim/mutant_seeds.json` catch
their mutants late, and the tests search for minutes.  This program keeps each seed that still catches its mutant and
finds the first one for the others.  The exit code is 1 when a mutant passes all runs: it needs another profile, or a
story in `tests/sim/test_mutants.py`.
Stays out: what a mutant is (`tidemark_sim.mutant`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

from tidemark_sim.mutant import Mutant
from tidemark_sim.mutants import MUTANTS
from tidemark_sim.runner import run_seed

SEEDS = Path(__file__).parents[1] / "tests" / "sim" / "mutant_seeds.json"
RUNS = 4000


def read() -> dict[str, int]:
    """Return the seeds that the file holds, by the mutant's name."""
    return {str(name): int(seed) for name, seed in json.loads(SEEDS.read_text()).items()}


def candidates(known: int | None, runs: int) -> Iterator[int]:
    """Yield the known seed, then all others in order."""
    if known is not None:
        yield known
    yield from (seed for seed in range(runs) if seed != known)


def catches(mutant: Mutant, seed: int) -> bool:
    """Say whether a seed fails on the mutant and passes on the product."""
    if run_seed(seed, mutant.profile, mutant=mutant.active).passed:
        return False
    return run_seed(seed, mutant.profile).passed


def search(task: tuple[str, int | None, int]) -> tuple[str, int | None]:
    """Return a mutant's name and the seed that catches it, None when none of the runs does."""
    name, known, runs = task
    [mutant] = (mutant for mutant in MUTANTS if mutant.name == name)
    return name, next((seed for seed in candidates(known, runs) if catches(mutant, seed)), None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/mutant_seeds.py", description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="mutants to look at (default: all in the file)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"seeds to try for each (default {RUNS})")
    arguments = parser.parse_args()
    seeds, missing = read(), []
    named = set(arguments.names or seeds)
    if unknown := named - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    with Pool() as pool:
        tasks = [(name, seeds.get(name), arguments.runs) for name in sorted(named)]
        for name, seed in pool.imap_unordered(search, tasks):
            if seed is None:
                missing.append(name)
            elif seed != seeds.get(name):
                print(f"{name}: seed {seed}, was {seeds.get(name)}", flush=True)
                seeds[name] = seed
                SEEDS.write_text(json.dumps(dict(sorted(seeds.items())), indent=1) + "\n")
    for name in missing:
        print(f"{name}: passes {arguments.runs} seeds", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
