"""What all tests share: the same examples of hypothesis every time, groups, markers, a real API server."""

from __future__ import annotations

import gc
import signal
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

from .run import servers, targets
from .run.groups import arranged, measured
from .run.results import SERVERS
from .run.workers import Workers

__all__ = ["control_plane", "kube", "metadata_etcd", "pod_runner", "programs", "promtool"]

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores Ctrl-C for what it starts in the background, and so would every process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

watch = servers.Watch()
ID_MAX = 100
"""Characters of a parameter that become part of a test's name."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Workers(config))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        servers.mark(item)
        targets.mark(item)
        if item.get_closest_marker("servers"):
            item.user_properties.append((SERVERS, True))
    if getattr(config.option, "loadgroup", False):  # set by xdist in each of its processes
        items[:] = arranged(items, measured())


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name long and binary parameters by number: every process must name a test alike, and a content may be random."""
    return argname if isinstance(val, str | bytes) and (isinstance(val, bytes) or len(val) > ID_MAX) else None


def pytest_collection_finish(session: pytest.Session) -> None:
    prepare(session)
    # Collected tests live as long as this process: each full collection of garbage would walk half a million objects.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_without_programs(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    watch.begin(item)
    try:
        return (yield)
    finally:
        watch.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    add_logs(item, report)
    return report
