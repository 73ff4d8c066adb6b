"""What all tests share: hypothesis runs the same examples every time, without a clock over them; a real API server."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.kube.fixtures import (
    add_logs,
    control_plane,
    kube,
    metadata_etcd,
    pod_runner,
    prepare,
    programs,
    promtool,
    skip_without_programs,
)

__all__ = ["control_plane", "kube", "metadata_etcd", "pod_runner", "programs", "promtool"]

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_collection_finish(session: pytest.Session) -> None:
    """No test has begun, so that no test's time limit runs while something is built."""
    prepare(session)


def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_without_programs(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    add_logs(item, report)
    return report
