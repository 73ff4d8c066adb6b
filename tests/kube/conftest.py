"""Fixtures of the tests of the operator on a real API server; those of the server itself are in `fixtures`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .client import Kube
from .control_plane import ControlPlane
from .operators import Operator, Operators, allow_operator


@pytest.fixture
async def operators(kube: Kube, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Operators]:
    """The operators of the test's namespace, none so far, with the role that the chart gives them."""
    await allow_operator(kube, control_plane, tmp_path)
    made = Operators(control_plane, kube.namespace, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def operator(operators: Operators) -> Operator:
    """One operator of the test's namespace."""
    return operators.start()
