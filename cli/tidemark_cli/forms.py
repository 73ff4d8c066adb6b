"""Forms of a result, `-o` beside `--json`: read before the command line is understood, and given to every command.

Stays out: writing results (output).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any

import typer

from . import output
from .output import Form


class Shown(StrEnum):
    """Values of -o."""

    JSON = "json"
    YAML = "yaml"
    WIDE = "wide"


FormOption = Annotated[
    Shown | None,
    typer.Option("-o", "--output", help="The same document as JSON or YAML, or a table with more columns."),
]


def asked_for(arguments: Sequence[str]) -> Form:
    """Return the form that a command line asks for, as far as one can tell before it is understood."""
    words = list(arguments)
    if "--" in words:
        words = words[: words.index("--")]
    if "--json" in words:
        return Form.JSON
    for number, word in enumerate(words):
        if word in ("-o", "--output"):
            return _form(words[number + 1] if number + 1 < len(words) else "")
        for prefix in ("--output=", "-o"):
            if word.startswith(prefix) and not (prefix == "-o" and word.startswith("--")):
                return _form(word.removeprefix(prefix).removeprefix("="))
    return Form.TABLE


def _form(text: str) -> Form:
    return Form(text) if text in list(Form) else Form.TABLE


def with_forms(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes --json the option -o too."""
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters
    if "as_json" not in parameters or "form" in parameters:
        return command

    @wraps(command)
    def called(*, form: Shown | None = None, **given: Any) -> None:
        if form is Shown.YAML and "as_jsonl" in given:
            raise typer.BadParameter("records are written as JSON, or one a line with --jsonl", param_hint="-o")
        output.choose(Form.YAML if form is Shown.YAML else Form.JSON, wide=form is Shown.WIDE)
        given["as_json"] = given["as_json"] or form in (Shown.JSON, Shown.YAML)
        command(**given)

    plain = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters.values()]
    option = inspect.Parameter("form", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=FormOption)
    after = 1 + [each.name for each in plain].index("as_json")
    options = [*plain[:after], option, *plain[after:]]
    called.__annotations__ = {each.name: each.annotation for each in options}
    vars(called)["__signature__"] = inspect.Signature(options)
    return called
