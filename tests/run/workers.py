"""The processes of a run: each has its janitor and its ports, and one that dies ends the run at once.

Stays out: which tests run where (`groups`), and how processes are found and killed (`janitor`).
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from . import ports
from .groups import group_of
from .janitor import Janitor, check, kill, marks

DIED = pytest.ExitCode.INTERNAL_ERROR
"""The exit code of a run of which a process died: no second run makes it green (`again`)."""


class Workers:
    """Hooks of pytest and pytest-xdist; `conftest` registers them in each process."""

    def __init__(self, config: pytest.Config) -> None:
        self._janitor = Janitor(begins_run=not hasattr(config, "workerinput"))
        self._dead: list[str] = []
        ports.take(os.environ)

    def pytest_unconfigure(self) -> None:
        self._janitor.end()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:    # where a fixture fails to end its servers too: the next group is not to blame
            if nextitem is None or group_of(nextitem.nodeid) != group_of(item.nodeid):
                check(lambda left: pytest.fail(left, pytrace=False))

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            self._dead.append(node.gateway.id)

    def pytest_handlecrashitem(self, report: pytest.TestReport, sched: Any) -> None:
        """End the run here: pytest-xdist would let each other process run all that it was given."""
        sched.config.hook.pytest_runtest_logreport(report=report)   # pytest-xdist does so behind this hook
        kill(marks())
        pytest.exit(f"{report.longrepr}; the run ends", DIED)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._dead:      # it died between two tests: what it had left did not run
            session.exitstatus = DIED
