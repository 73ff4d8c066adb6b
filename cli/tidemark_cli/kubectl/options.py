"""What every command of the plugin takes: how to reach the API server, and the form of the result.

Stays out: using it (server).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from ..output import Form

KubeconfigOption = Annotated[
    str, typer.Option("--kubeconfig", metavar="FILE", help="As of kubectl; else KUBECONFIG, else ~/.kube/config.")
]
ContextOption = Annotated[
    str, typer.Option("--context", metavar="NAME", help="Context of the kubeconfig. Default: the current one.")
]
NamespaceOption = Annotated[
    str, typer.Option("-n", "--namespace", metavar="NAME", help="Default: that of the context.")
]
FormOption = Annotated[Form, typer.Option("-o", "--output", help="What stdout is to hold.")]

ClusterOption = Annotated[
    str, typer.Option("--cluster", metavar="NAME", help="TidemarkCluster. Default: the only one of the namespace.")
]


@dataclass(frozen=True, slots=True)
class Given:
    """What was given of it."""

    kubeconfig: KubeconfigOption = ""
    context: ContextOption = ""
    namespace: NamespaceOption = ""
    form: FormOption = Form.TABLE


def on_server(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of each of its parameters that is a dataclass of options, those of the last first."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in parameters.items() if is_dataclass(each.annotation)}
    options = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, each in parameters.items() if name not in groups]
    for group in reversed(groups.values()):
        kinds = get_type_hints(group, include_extras=True)
        options += [
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=kinds[each.name])
            for each in fields(group)]

    @wraps(command)
    def called(**arguments: Any) -> None:
        made = {
            name: group(**{each.name: arguments.pop(each.name) for each in fields(group)})
            for name, group in groups.items()}
        command(**made, **arguments)

    called.__annotations__ = {each.name: each.annotation for each in options}
    vars(called)["__signature__"] = inspect.Signature(options)
    return called
