"""How the demo is told: one line per event with the time since the start, a bar while records flow, a table at the end.

Stays out: knowing what happens next.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text


class Screen:
    """Lines on stdout; the bar only where stdout is a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console, transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def tell(self, text: str, style: str = "") -> None:
        """Write one event."""
        line = Text.assemble((f"{self.seconds:6.2f} s", "dim"), f"  {text}")
        self._bar.console.print(line, style=style or None, soft_wrap=True)

    def begin(self, description: str, total: int) -> None:
        """Begin to count something."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(description, total=total)

    def count(self, completed: int) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=completed)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Write a small table; numbers are aligned on the right."""
        table = Table(box=None, padding=(0, 2))
        for place, name in enumerate(columns):
            number = bool(rows) and isinstance(rows[0][place], int)
            table.add_column(name, justify="right" if number else "left")
        for row in rows:
            table.add_row(*map(_shown, row))
        self._bar.console.print(table)

    def summary(self, rows: Mapping[str, object], *, good: bool) -> None:
        """Write the table at the end."""
        table = Table(title="what was promised, and what was found", box=None, show_header=False, title_justify="left")
        table.add_column(style="bold")
        table.add_column(style="green" if good else "red", overflow="fold")
        for name, value in rows.items():
            table.add_row(name, _shown(value))
        self._console.print(table)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
