"""Command line of the simulator: run seeds, on all processors, and say what happened.

`python -m tidemark_sim --seed N [--runs K] [--profile P] [--json] [--steps N] [--trace] [--jobs J]` runs seeds
N to N+K-1 and exits with 1 when one of them breaks a promise, with 2 when enough runs never met something that
they are there to meet, with 3 when one of its processes died.  Results do not depend on the number of jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Generator
from contextlib import closing
from functools import partial

from .keyspaces.run import AHEAD
from .keyspaces.run import PROFILE as KEYSPACE
from .keyspaces.traces import TRACES
from .processes import in_processes
from .profiles import PROFILES
from .runner import KEYSPACES, STEPS, Result, run_seed

REQUIRED = (
    "elections", "truncations", "swaps_committed", "swaps_aborted", "swaps_resumed", "torn_tails", "wiped_disks",
    "rollbacks_appended", "rollbacks_confirmed", "rollbacks_lost", "timeouts", "late_acks_during_rollback",
    "outcomes_asked", "quorum_changes", "trims", "reader_rewinds", "reader_failovers", "reader_all_send_all",
    "reader_members_back", "reader_slow_members", "reader_holes", "reader_trims", "payloads_left_out",
    "copies_changes_committed", "pauses", "metadata_rebuilt", "latest_answered", "latest_refused",
    "disk_full_refusals", "transfers", "trims_on_full_disks", "forged_messages", "forged_answers", "forged_pulls",
    "losses_accepted", "entries_given_up", "sinks_marked", "sinks_part_left_out",
)
"""Counts that may not be 0 over many runs of all profiles: what was never met was never tested."""

OF_READERS = {
    "reader_rewinds": "reader_rewind", "reader_failovers": "reader_known_down", "reader_members_back": "reader_back",
    "reader_slow_members": "reader_slow", "reader_holes": "reader_gaps_hole", "reader_trims": "reader_gaps_trim",
}

REQUIRED_OF_KEYSPACES = (
    *(f"trace_{name.replace(' ', '_')}" for name in TRACES),
    "moves_begun", "moves_finished", "moves_aborted", "rounds_begun", "floors_raised", "crashes", "cuts", "isolations",
    "partitions", "slow_links", "clocks_within", "clocks_beyond", "wiped_disks", "old_images", "images_noticed",
    "core_range_withdrawn", "write_ok", "write_sloppy", "write_unknown", "write_future", "getdel_ok", "read_ok",
    "read_unknown", "pages",
)
"""The same of many runs of keyspaces."""

REQUIRED_OF = {
    KEYSPACE: REQUIRED_OF_KEYSPACES,
    AHEAD: ("clocks_ahead", "repair_ok", "repair_past", "repair_unknown", "write_future", "stamps_taken_back",
            "moves_finished", "floors_raised", "crashes"),
}
"""The same by profile of keyspaces."""

REQUIRED_FROM_RUNS = 200
RARE = dict.fromkeys(
    ("rollbacks_lost", "reader_slow_members", "reader_trims", "copies_changes_committed", "entries_given_up",
     *REQUIRED_OF_KEYSPACES), 1_000)
"""How many runs require the counts that some 200 seeds in a row leave at 0."""

SUMMARY = (
    *REQUIRED, "copies_changes_aborted", "expands_committed", "contracts_committed", "snapshots",
    "restarts", "corrupt_repairs",
    "appends_acked", "duplicates_answered", "rollbacks_told", "renumberings", "quorum_changes_during_rollback",
    "rollbacks_ambushed_written", "rollbacks_ambushed_durable", "rollbacks_ambushed_acked",
    "rollbacks_ambushed_confirmed",
)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    started = time.monotonic()
    totals: dict[str, int] = {}
    events = 0
    failed: list[Result] = []
    done = 0
    with closing(_results(options)) as results:
        for result in results:
            done += 1
            events += result.events
            for name, count in result.counts.items():
                totals[name] = totals.get(name, 0) + count
            if not result.passed:
                failed.append(result)
                if not options.json:
                    _print_failure(result)
            if not options.json and not options.trace and (done % 50 == 0 or done == options.runs):
                seconds = time.monotonic() - started
                print(f"{done}/{options.runs} runs, {len(failed)} failed, {done / seconds:.1f} runs/s", flush=True)
    seconds = time.monotonic() - started
    required = REQUIRED_OF.get(options.profile, REQUIRED if options.profile is None else ())
    counts = {**dict.fromkeys(required, 0), **totals} if options.profile in REQUIRED_OF else _summary(totals)
    missing = [name for name in required if not counts[name] and done >= RARE.get(name, REQUIRED_FROM_RUNS)]
    if options.json:
        print(
            json.dumps(
                {
                    "runs": done, "failed": len(failed), "events": events, "seconds": round(seconds, 1),
                    "counts": counts, "never_met": missing,
                    "failures": [result.to_dict() for result in failed],
                }
            )
        )
    else:
        print(f"{events} events, {events // max(done, 1)} a run, {seconds:.1f} s")
        print("  ".join(f"{name}={count}" for name, count in counts.items()))
        if missing:
            print(f"never met in {done} runs: {', '.join(missing)}")
    if failed:
        return 1
    if done < options.runs:
        return 3
    return 2 if missing else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tidemark_sim", description="Simulate Tidemark's core.")
    parser.add_argument("--seed", type=int, required=True, help="first seed")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds to run")
    parser.add_argument(
        "--profile", choices=[*PROFILES, *KEYSPACES], help="kind of run; default: all of shards in turn")
    parser.add_argument("--steps", type=int, default=STEPS, help="events before faults stop")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--trace", action="store_true", help="print every event as it happens")
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.steps < 1 or options.jobs < 1 or options.seed < 0:
        parser.error("--runs, --steps and --jobs must be at least 1, --seed at least 0")
    return options


def _results(options: argparse.Namespace) -> Generator[Result]:
    seeds = range(options.seed, options.seed + options.runs)
    run = partial(run_seed, profile=options.profile, steps=options.steps, live=options.trace)
    if options.jobs == 1 or options.runs == 1 or options.trace:
        yield from map(run, seeds)
        return
    yield from in_processes(run, seeds, min(options.jobs, options.runs))


def _summary(totals: dict[str, int]) -> dict[str, int]:
    counts = {name: totals.get(name, 0) for name in SUMMARY}
    counts["transfers"] = totals.get("asked_StartTransfer_done", 0)
    counts["snapshots"] = totals.get("core_snapshot_installed", 0)
    counts["restarts"] = totals.get("crashes", 0)
    counts["rollbacks_appended"] = totals.get("core_rollback_appended", 0)
    counts["timeouts"] = totals.get("core_quorum_timeout", 0)
    for name, counted in OF_READERS.items():
        counts[name] = totals.get(counted, 0)
    counts["corrupt_repairs"] = totals.get("core_entry_repaired", 0)
    return counts


def _print_failure(result: Result) -> None:
    print(
        f"FAIL {result.message}\n"
        f"step={result.step} time={result.time_ms / 1000:.3f}s rule={result.rule}\n"
        f"replay: {result.replay}\nstory:"
    )
    for line in result.story:
        print(f"  {line}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
