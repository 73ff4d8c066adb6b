"""How a program of ours runs one command line: Ctrl-C and every failure become a line and an exit code.

Stays out: what the commands do, and which failures there are (failures).
"""

from __future__ import annotations

import json
from typing import Any

import typer
from typer.core import TyperGroup

from .failures import INTERRUPTED, OK, describe
from .output import fail


class Interrupted(Exception):
    """Ctrl-C, in a form that typer leaves to us."""


class Commands(TyperGroup):
    """Commands, with Ctrl-C handed to `run_app`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None


def run_app(app: typer.Typer, program: str, arguments: list[str] | None, *, as_json: bool) -> int:
    """Run one command line and return its exit code; `as_json`: a failure is one JSON document too."""
    try:
        app(arguments, prog_name=program)
    except SystemExit as ended:  # help, wrong usage, or a command's own exit code
        return ended.code if isinstance(ended.code, int) else OK
    except Interrupted:
        fail("interrupted")
        return INTERRUPTED
    except Exception as error:
        failure = describe(error)
        if failure is None:
            raise  # a bug: its traceback is what we want to see
        if as_json:
            print(json.dumps({"error": failure.reason, "message": failure.message, "advice": failure.advice}))
        fail(failure.message, failure.advice)
        return failure.code
    return OK
