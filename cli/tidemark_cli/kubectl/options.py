"""What every command of the plugin takes: how to reach the API server, and the form of the result.

Stays out: using it (server).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

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

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    form: Form = Form.TABLE


_SHARED: dict[str, Any] = {
    "kubeconfig": KubeconfigOption, "context": ContextOption, "namespace": NamespaceOption, "form": FormOption}


def on_server(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, whose first parameter is `given`, the options that all have."""
    first, *rest = inspect.signature(command, eval_str=True).parameters.values()
    assert first.name == "given", command

    def with_options(**arguments: Any) -> None:
        command(Given(**{name: arguments.pop(name) for name in _SHARED}), **arguments)

    defaults = Given()
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(defaults, name), annotation=kind)
        for name, kind in _SHARED.items()]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in rest]
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
    return with_options
