"""The results of a run as pytest writes them (`--junitxml`): each test with its node id, seconds and outcome."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

SERVERS = "servers"
"""The property of the result of a test with servers (`conftest`)."""


class Outcome(Enum):
    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    """In its call, or in what is set up and torn down around it."""


@dataclass(frozen=True, slots=True)
class Case:
    """The result of a test.  One that fails in its call and again in its teardown has two."""

    test: str
    """Its node id, such as `tests/wire/test_frames.py::test_a[x]`."""
    seconds: float
    """Its call, and what is set up and torn down around it."""
    outcome: Outcome
    message: str
    """The first line of why it failed or was skipped."""
    has_servers: bool

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


def cases(results: Iterable[Path]) -> Iterator[Case]:
    """Yield what the files hold, in their order; a file that is missing holds nothing."""
    for path in results:
        if path.exists():
            yield from map(_case, ElementTree.parse(path).iter("testcase"))


def outcomes(results: Path) -> dict[str, Outcome]:
    """Return how each test of a file ended: one that failed anywhere failed."""
    ended: dict[str, Outcome] = {}
    for case in cases([results]):
        if ended.get(case.test) is not Outcome.FAILED:
            ended[case.test] = case.outcome
    return ended


def _case(written: ElementTree.Element) -> Case:
    outcome, message = Outcome.PASSED, ""
    for kind, means in (("skipped", Outcome.SKIPPED), ("error", Outcome.FAILED), ("failure", Outcome.FAILED)):
        if (part := written.find(kind)) is not None:
            outcome, message = means, next(iter(part.get("message", "").strip().splitlines()), "")
    return Case(
        _node_id(written.get("classname", ""), written.get("name", "")), float(written.get("time", "0")), outcome,
        message, any(one.get("name") == SERVERS for one in written.iter("property")))


def _node_id(module: str, name: str) -> str:
    """pytest writes the file as a module, and xdist adds the group to the name."""
    head, at, group = name.rpartition("@")
    return f"{module.replace('.', '/')}.py::{head if at and ']' not in group else name}"
