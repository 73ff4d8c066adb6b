"""`tidemark demo`: options, a folder that goes away with the demo, the last line, the exit code.

Stays out: what happens (scenario).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import tidemark
import typer
from rich.console import Console
from tidemark_operator import local

from ..failures import FAILED
from ..output import note
from . import packages
from .scenario import Outcome, run
from .screen import Screen


def demo(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="Other changes than the bundled ones: ndjson.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Leave the cluster's state and logs there, stopped.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Tell the story on stderr; stdout has one line of JSON only.")
    ] = False,
) -> None:
    """Lose a leader, swap a node, kill a sender and owners, pause a majority, lose nothing: in about a minute."""
    changes = packages.load(packages.find(data))
    directory = Path(tempfile.mkdtemp(prefix="tidemark-demo-")) if keep is None else keep
    screen = Screen(Console(highlight=False, stderr=as_json))

    async def main() -> tuple[Outcome, float]:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            with screen:
                outcome = await run(directory, changes, screen)
                return outcome, screen.seconds
        finally:
            await _stop_all(directory)

    kept = keep is not None
    try:
        outcome, seconds = tidemark.run(main())
        kept = kept or not outcome.good
    except Exception:
        kept = True  # a failure leaves its evidence; Ctrl-C does not
        raise
    finally:
        if kept:
            note(f"the cluster's state and logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    document = summary(outcome, seconds)
    screen.summary(document, good=outcome.good)
    write_line(document, as_json=as_json)
    if not outcome.good:
        raise typer.Exit(FAILED)


def write_line(document: dict[str, Any], *, as_json: bool) -> None:
    """Write the last line for programs; a person has the table."""
    if as_json or not sys.stdout.isatty():
        sys.stdout.write(json.dumps(document) + "\n")


def summary(outcome: Outcome, seconds: float) -> dict[str, Any]:
    """Return the last line."""
    verdict, spark, delivery = outcome.verdict, outcome.spark, outcome.delivery
    view, keys, limbo = outcome.view, outcome.keys, outcome.limbo
    return {
        "acked": verdict.acked, "read": verdict.read, "lost": verdict.lost, "duplicated": verdict.duplicated,
        "reordered": verdict.reordered, "elections": outcome.elections, "swaps": outcome.swaps,
        "failover_ms": outcome.failover_ms, "seconds": round(seconds, 1), "killed": outcome.killed,
        "swapped": f"{outcome.swapped_from} for {outcome.swapped_to}", "etcd": outcome.etcd,
        "spark_sections": spark.sections, "spark_mismatches": spark.mismatches,
        "sink_rows": spark.copied, "sink_mismatches": spark.copy_mismatches,
        "seconds_spark": round(spark.seconds, 1),
        "read_bytes": delivery.read_bytes, "read_wrong": delivery.wrong, "seconds_reading": round(delivery.seconds, 1),
        "received_over_delivered": round(delivery.received_over_delivered, 4), "rewinds": delivery.rewinds,
        "shares": {node: round(share, 3) for node, share in delivery.shares.items()},
        "killed_reading": delivery.killed, "view_documents": view.documents, "view_mismatches": view.mismatches,
        "view_digest": view.digest, "killed_putting": view.killed,
        "told_confirmed": limbo.confirmed, "told_local": limbo.local, "told_unknown": limbo.unknown,
        "told_rolled_back": limbo.rolled_back, "then_confirmed": limbo.then_confirmed,
        "then_rolled_back": limbo.then_rolled_back, "seconds_limbo": round(outcome.seconds_limbo, 1),
        "contradictions": len(limbo.contradictions),
        "keyspace_keys": keys.keys, "keyspace_deleted": keys.deleted, "keyspace_sloppy": keys.sloppy,
        "keyspace_hints": keys.hints, "killed_owners": " and ".join(keys.killed),
        "seconds_keyspace": round(keys.seconds, 1), "keyspace_diverged": keys.verdict.diverged,
        "resurrected": keys.verdict.resurrected,
    }


async def _stop_all(directory: Path) -> None:
    """Stop every process of the demo's cluster; a failed start may have left nothing to stop."""
    with suppress(local.LocalRuntimeError):
        await local.down(directory)
