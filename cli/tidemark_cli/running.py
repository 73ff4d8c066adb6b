"""How a program of ours runs one command line: Ctrl-C and every failure become a line and an exit code.

Stays out: what the commands do, and which failures there are (failures).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from . import output
from .failures import FAILED, INTERRUPTED, OK, USAGE, Failure, describe
from .output import Form, fail

UsageError: Any = typer.BadParameter.__base__
"""The error of typer for a command line that it does not understand."""

TRACEBACK_VARIABLE = "TIDEMARK_TRACEBACK"


class Interrupted(Exception):
    """Ctrl-C, in a form that typer leaves to us."""


class _Closed(Exception):
    """The reader of stdout has gone, as `head` does; in a form that typer leaves to us."""


class Commands(TyperGroup):
    """Commands, with Ctrl-C, wrong usage and a closed pipe handed to `run_app`."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        return super().main(*arguments, **{**options, "standalone_mode": False})

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt:
            raise Interrupted from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with the whole first line of its help: an end in dots says nothing."""
        rows = [(name, (self.commands[name].help or "").strip().partition("\n")[0]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except BrokenPipeError:
            raise _Closed from None


def run_app(app: typer.Typer, program: str, arguments: Sequence[str], *, form: Form) -> int:
    """Run one command line and return its exit code; a failure is written in the form of the result too."""
    output.begin()
    try:
        code = app(list(arguments), prog_name=program)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else OK
    except _Closed:
        output.discard()
        return OK
    except Interrupted:
        return _failed(Failure("interrupted", "", INTERRUPTED, "INTERRUPTED"), form)
    except UsageError as error:
        return _misused(error, form)
    except Exception as error:
        failure = describe(error)
        if failure is None:
            failure = _bug(error)
        return _failed(failure, form)
    if not isinstance(code, int) or code == OK:
        return OK
    if form is not Form.TABLE and not output.was_written():
        output.document(form, {"error": "FAILED", "message": f"ended with exit code {code}", "advice": ""})
    return code


def _failed(failure: Failure, form: Form) -> int:
    try:
        _write(failure, form)
    except OSError:  # stdout is full, or closed
        output.discard()
    fail(failure.message, failure.advice)
    return failure.code


def _write(failure: Failure, form: Form) -> None:
    if form is not Form.TABLE and not output.was_written():
        output.document(form, {"error": failure.reason, "message": failure.message, "advice": failure.advice})


def _misused(error: Any, form: Form) -> int:
    """Say what of the command line is wrong, with its usage for people."""
    if form is not Form.TABLE:
        return _failed(Failure(error.format_message(), "See --help.", USAGE, "USAGE"), form)
    error.show(file=sys.stderr)
    return int(error.exit_code)


def _bug(error: Exception) -> Failure:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error, file=sys.stderr)
    text = " ".join(str(error).split())
    return Failure(
        f"this is a bug of Tidemark: {type(error).__name__}: {text}",
        f"Report it with what {TRACEBACK_VARIABLE}=1 in front of the command adds.", FAILED, "BUG")
