"""What a person or a program sees: tables and progress for the one, one document for the other.

Stdout carries results only; progress, notes and errors go to stderr.
Stays out: what the commands do.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any

import yaml
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

# What is shown comes from people and their data: brackets and colons in it mean themselves.
stdout = Console(highlight=False, soft_wrap=False, markup=False, emoji=False)
stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)

PIPED_COLUMNS = 1 << 16
"""Width where no person looks: `grep` and `awk` want a row in one line."""


class Form(StrEnum):
    """What a result is written as."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def emit(as_json: bool, document: Any, render: Callable[[], RenderableType]) -> None:
    """Write the result of a command: the document as JSON, or what `render` makes for people."""
    write(Form.JSON if as_json else Form.TABLE, document, render)


def write(form: Form, document: Any, render: Callable[[], RenderableType]) -> None:
    """Write the result of a command in the form that was asked for."""
    match form:
        case Form.TABLE:
            show(render())
        case Form.JSON:
            sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        case Form.YAML:
            sys.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    sys.stdout.flush()


def show(content: RenderableType) -> None:
    """Write to stdout; in a pipe or a file no line is folded, unless COLUMNS asks for a width."""
    if stdout.is_terminal or os.environ.get("COLUMNS"):
        stdout.print(content)
    else:
        Console(file=stdout.file, width=PIPED_COLUMNS, highlight=False, markup=False, emoji=False).print(content)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """Return a table; columns whose name begins with `#` hold numbers."""
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
    stderr.print(Text.assemble(("error:", "bold red"), f" {message}"), soft_wrap=True)
    if advice:
        stderr.print(Text.assemble(("hint:", "dim"), f"  {advice}"), soft_wrap=True)


def progress(*, data: bool = False) -> Progress:
    """Return a progress display on stderr where that is a terminal; with `data` its numbers are bytes."""
    columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [DownloadColumn(binary_units=True)] if data else [MofNCompleteColumn()]
    return Progress(*columns, TimeElapsedColumn(), console=stderr, transient=True, disable=not stderr.is_terminal)
