"""Output for people and for programs: tables and progress for the one, one document for the other.

Stdout carries results only; progress, notes and errors go to stderr.
Stays out: what the commands do.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType

if TYPE_CHECKING:  # what not every command line needs is loaded where it is used: help is there at once
    from rich.progress import Progress
    from rich.table import Table

class _Console(Console):
    """A console that leaves a closed pipe to the program (running), which ends quietly."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - within the handler of the BrokenPipeError


# What is shown comes from people and their data: brackets and colons in it mean themselves.
stdout = _Console(highlight=False, soft_wrap=False, markup=False, emoji=False)
stderr = _Console(stderr=True, highlight=False, markup=False, emoji=False)

PIPED_COLUMNS = 1 << 16
"""Width where no person looks: `grep` and `awk` want a row in one line."""


class Form(StrEnum):
    """The form of a result."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(slots=True)
class _Choice:
    """The form of the result of the command that runs, and whether stdout has it."""

    machine: Form = Form.JSON
    wide: bool = False
    written: bool = False


_choice = _Choice()


def begin() -> None:
    """Forget what the command line before this one chose."""
    choose(Form.JSON, wide=False)
    _choice.written = False


def choose(machine: Form, *, wide: bool) -> None:
    """Say what a document is written as, and whether tables have all their columns."""
    _choice.machine, _choice.wide = machine, wide


def is_wide() -> bool:
    """Say whether tables have all their columns."""
    return _choice.wide


def was_written() -> bool:
    """Say whether stdout has a result already: it is one document, or none."""
    return _choice.written


def writing() -> None:
    """Note that stdout has a result now."""
    _choice.written = True


def emit(as_json: bool, document: Any, render: Callable[[], RenderableType]) -> None:
    """Write the result of a command: the document for programs, or what `render` makes for people."""
    write(_choice.machine if as_json else Form.TABLE, document, render)


def write(form: Form, result: Any, render: Callable[[], RenderableType]) -> None:
    """Write the result of a command in the form that was asked for."""
    if form is Form.TABLE:
        show(render())
        sys.stdout.flush()
    else:
        document(form, result)


def document(form: Form, result: Any) -> None:
    """Write the one document of a command."""
    writing()
    if form is Form.YAML:
        import yaml

        sys.stdout.write(yaml.safe_dump(result, sort_keys=False, allow_unicode=True))
    else:
        sys.stdout.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def discard() -> None:
    """Drop what stdout still holds: nothing can be written there, and Python would complain once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(content: RenderableType) -> None:
    """Write to stdout; in a pipe or a file no line is folded or cut, and none ends in blanks."""
    _print(stdout, content)


def show_beside(content: RenderableType) -> None:
    """Write to stderr, as `show` does."""
    _print(stderr, content)


def _print(console: Console, content: RenderableType) -> None:
    if console.is_terminal:
        console.print(content)
        return
    text = io.StringIO()
    Console(file=text, width=PIPED_COLUMNS, highlight=False, markup=False, emoji=False).print(content)
    console.file.writelines(line.rstrip() + "\n" for line in text.getvalue().split("\n")[:-1])


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """Return a table; columns whose name begins with `#` hold numbers."""
    from rich.table import Table

    made = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        numbers = column.startswith("#")
        made.add_column(column.lstrip("#"), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, str) else str(cell) for cell in row))
    return made


def note(text: str) -> None:
    """Say something to the person, beside the result."""
    stderr.print(text, soft_wrap=True)


def fail(message: str, advice: str = "") -> None:
    """Say what went wrong in one red line, and what to do next in another."""
    from rich.text import Text

    stderr.print(Text.assemble(("error:", "bold red"), f" {message}"), soft_wrap=True)
    if advice:
        stderr.print(Text.assemble(("hint:", "dim"), f"  {advice}"), soft_wrap=True)


def progress(*, data: bool = False) -> Progress:
    """Return a progress display on stderr where that is a terminal; with `data` its numbers are bytes."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [DownloadColumn(binary_units=True)] if data else [MofNCompleteColumn()]
    return Progress(*columns, TimeElapsedColumn(), console=stderr, transient=True, disable=not stderr.is_terminal)
