"""Reports: the table on the screen, one JSON file per benchmark, and RESULTS.md made of the newest of them.

Stays out: judging; a figure knows itself whether it met its target.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .figures import Figure, Outcome, number

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent / "RESULTS.md"
AGAINST = RESULTS / "against"


def show(outcome: Outcome, console: Console) -> None:
    """Print one outcome for people."""
    console.print(f"\n[bold]{outcome.name}[/bold]  {outcome.title}  ({outcome.seconds:.0f} s)")
    if outcome.failure:
        console.print(f"could not run: {outcome.failure}", style="red", markup=False)
    if outcome.absent:
        console.print(f"not measured: {outcome.absent}", markup=False)
    if outcome.figures:
        table = Table("what", "measured", "target", "verdict", "against", box=None, pad_edge=False)
        for figure in outcome.figures:
            style = {None: "", True: "green", False: "red"}[figure.met]
            table.add_row(*_row(figure), style=style)
        console.print(table)
    for text in (*outcome.blocks, *outcome.notes):
        console.print(text, markup=False, highlight=False)


def _row(figure: Figure) -> tuple[str, str, str, str, str]:
    measured = f"{number(figure.value)} {figure.unit}"
    return figure.what, measured, figure.target_text, figure.verdict, figure.basis


def write(outcomes: list[Outcome], machine: dict[str, Any], command: str) -> list[Path]:
    """Write one file for each outcome and the page again; return what was written."""
    RESULTS.mkdir(exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    written = []
    for outcome in outcomes:
        path = RESULTS / f"{now:%Y-%m-%d}-{outcome.name}.json"
        told = {"at": f"{now:%Y-%m-%d %H:%M} UTC", "command": command, "machine": machine, "outcome": outcome.as_json()}
        path.write_text(compact(told))
        written.append(path)
    PAGE.write_text(page())
    return [*written, PAGE]


def compact(told: Any) -> str:
    """JSON for people, except that long lists of numbers stay on one line."""
    numbers: list[str] = []

    def fold(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fold(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            if value and all(isinstance(item, int | float) for item in value):
                numbers.append("[" + ", ".join(f"{item:.6g}" for item in value) + "]")
                return f"\0{len(numbers) - 1}\0"
            return [fold(inner) for inner in value]
        return value

    text = json.dumps(fold(told), indent=1, ensure_ascii=False)
    for place, line in enumerate(numbers):
        text = text.replace(f'"\\u0000{place}\\u0000"', line, 1)
    return text + "\n"


def newest() -> list[dict[str, Any]]:
    """Return the newest stored result of each benchmark, by name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        told = json.loads(path.read_text())
        found[told["outcome"]["name"]] = told
    return [found[name] for name in sorted(found)]


def page() -> str:
    """Return RESULTS.md: a summary of every promise, then each benchmark with its figures."""
    results = newest()
    outcomes = [Outcome.from_json(told["outcome"]) for told in results]
    lines = [
        "# Results", "",
        "Written by `python -m bench`; do not edit. The newest full run of each benchmark; every sample is in",
        "`bench/results/`. What limits the figures: `docs/performance.md`.", "",
        "## Promises", "", "| benchmark | what | measured | target | verdict |", "|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        for figure in outcome.figures:
            if figure.met is not None:
                what, measured, target, verdict, _ = _row(figure)
                lines.append(f"| {outcome.name} | {what} | {measured} | {target} | {verdict} |")
    for told, outcome in zip(results, outcomes, strict=True):
        lines += ["", f"## {outcome.name}", "", *_section(told, outcome)]
    return "\n".join(lines) + "\n"


def _section(told: dict[str, Any], outcome: Outcome) -> list[str]:
    machine = told["machine"]
    lines = [
        f"{outcome.title}. {told['at']}, {outcome.seconds:.0f} s, commit {machine['commit']}.", "",
        f"    {told['command']}", "",
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['disk']}, "
        f"{machine['system']}; load before {machine['load_before']}.", "",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in machine["versions"].items()) + ".", "",
    ]
    if outcome.configuration:
        lines += ["Configuration: " + ", ".join(f"{k} {v}" for k, v in outcome.configuration.items()) + ".", ""]
    if outcome.absent:
        lines += [f"Not measured: {outcome.absent}", ""]
    if outcome.failure:
        lines += [f"Could not run: {outcome.failure}", ""]
    if outcome.figures:
        lines += ["| what | measured | target | verdict | against |", "|---|---|---|---|---|"]
        lines += ["| " + " | ".join(_row(figure)) + " |" for figure in outcome.figures]
    for block in outcome.blocks:
        lines += ["", "```", block, "```"]
    for note in outcome.notes:
        lines += ["", note]
    return lines
