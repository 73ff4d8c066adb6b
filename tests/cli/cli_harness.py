"""What the tests of the command line pass around."""

from __future__ import annotations

from collections.abc import Callable

from tests.ran import Ran

Cli = Callable[..., Ran]


def holds(on: Cli, kind: str, name: str, *conditions: str) -> bool:
    """Say whether the operator says of an object that all these conditions are true."""
    shown = on("get", kind, name, "--json")
    assert shown.code == 0, shown.err
    said = {each["type"]: each["status"] for each in shown.document["status"]["conditions"]}
    return all(said.get(each) == "True" for each in conditions)
