"""`tidemark swap` of a whole node: the Reconfiguration that it applies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cli_harness import Cli
from tidemark_cli import target
from tidemark_operator.resources import load_resource

ARGUMENTS = ("swap", "--from", "dev-1", "--to", "dev-4", "--json")


class Service:
    """An Admin service that has carried out whatever is applied."""

    def __init__(self) -> None:
        self.applied: list[dict[str, Any]] = []

    async def describe(self) -> Any:
        return SimpleNamespace(cluster="dev")

    async def apply(self, manifest: str) -> None:
        self.applied.append(yaml.safe_load(manifest))

    async def watch(self, _kind: str, _name: str) -> AsyncIterator[list[dict[str, Any]]]:
        done = {"stage": "Finished", "conditions": [{"type": "Succeeded", "status": "True", "reason": "Completed"}]}
        yield [{**self.applied[-1], "status": done}]


@pytest.mark.parametrize(("arguments", "throttle"), [
    ((), None), (("--rate", "50Mi"), {"bytesPerSecondPerNode": "50Mi"})])
def test_a_node_is_swapped_at_the_rate_that_is_given(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], throttle: dict[str, str] | None
) -> None:
    service = Service()

    @asynccontextmanager
    async def admin(_state: Any, _cluster: Any) -> AsyncIterator[Service]:
        yield service

    monkeypatch.setattr(target, "admin", admin)
    done = cli(*ARGUMENTS, *arguments)
    assert done.code == 0, done.err
    (manifest,) = service.applied
    assert manifest["spec"].get("throttle") == throttle
    assert manifest["spec"]["nodeSwap"] == {"from": "dev-1", "to": {"node": "dev-4"}, "removeSource": "Keep"}
    load_resource(manifest, "applied")
