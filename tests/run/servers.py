"""The marker `servers`: tests that start etcd, nodes, operators, an API server or Spark, or run what Go builds.

`make check` leaves them out.  Tests in `FOLDERS` and tests that use one of `FIXTURES` have the marker already;
any other test says `pytestmark = pytest.mark.servers`.  A test without the marker fails as soon as it starts a server.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePath

import pytest

FOLDERS = ("tests/e2e/",)
FIXTURES = frozenset({
    "start_node", "nodes_of_the_file", "etcd", "state", "programs", "promtool", "secure_etcd", "spark"})
PROGRAMS = frozenset({"etcd", "kube-apiserver", "kube-controller-manager"})
MODULES = frozenset({"tidemark_node", "tidemark_operator"})


def mark(item: pytest.Item) -> None:
    """Give the marker to a test that starts servers by what it uses or where it lies."""
    if item.nodeid.startswith(FOLDERS) or FIXTURES & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.servers)


def starts_a_server(command: Sequence[str]) -> bool:
    """Say whether a command line starts a server, behind a prefix such as `unshare` too."""
    modules = {command[at + 1] for at, word in enumerate(command[:-1]) if word == "-m"}
    return bool(MODULES & modules) or PurePath(command[0]).name in PROGRAMS if command else False


class Watch:
    """Refuses a server that a test without the marker starts in this process."""

    def __init__(self) -> None:
        self._test: pytest.Item | None = None
        sys.addaudithook(self._look)

    def begin(self, item: pytest.Item) -> None:
        self._test = None if item.get_closest_marker("servers") else item

    def end(self) -> None:
        self._test = None

    def _look(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "subprocess.Popen" or self._test is None:
            return
        given = arguments[1]
        command = [str(given)] if isinstance(given, str | bytes) else [str(word) for word in given or ()]  # type: ignore[attr-defined]
        if starts_a_server(command):
            raise AssertionError(f"{self._test.nodeid} starts {command[:4]} and lacks the marker servers")
