"""The commands of a page of the documentation, run one after another as somebody at a shell would.

A command is what stands behind `$ ` in a block, with the lines that a backslash continues it by; what stands below is
its output, an example.  Stays out: what has to be true in the end (the tests).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from .client import Kube
from .control_plane import ControlPlane
from .fixtures import REPOSITORY
from .kubelet_logs import serving_logs
from .pod_runner import PodRunner

NAMESPACE = "tidemark"
"""What the pages call the namespace of everything."""
COMMAND_S = 300
CLUSTER_WIDE = (
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io", "clusterroles.rbac.authorization.k8s.io",
)


@dataclass(frozen=True, slots=True)
class Command:
    """One command, the block it stands in and the output that the page shows for it."""

    line: int
    text: str
    shown: str


def commands(page: Path) -> list[Command]:
    """Return what the page's fenced blocks say to run."""
    found: list[Command] = []
    fenced, lines = False, page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced and line.startswith("$ "):
            found.append(Command(number, line[2:], ""))
        elif fenced and found:
            last = found[-1]
            found[-1] = (
                Command(last.line, f"{last.text}\n{line}", "") if last.text.endswith("\\")
                else Command(last.line, last.text, f"{last.shown}{line}\n"))
    return found


class Shell:
    """One shell session: a directory, an environment that `export` changes, and names that only cluster DNS knows."""

    def __init__(self, directory: Path, environment: Mapping[str, str], hosts: Callable[[], Mapping[str, str]]) -> None:
        self.directory = directory
        self._environment = dict(environment)
        self._hosts = hosts

    def run(self, command: Command, page: Path) -> str:
        """Run it and return its standard output; one that fails fails the test, with the line of the page."""
        if exported := re.fullmatch(r"export (\w+)=(\S+)", command.text):
            self._environment[exported[1]] = exported[2]
            return ""
        self._say_hosts()
        finished = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.text], cwd=self.directory, env=self._environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        where = f"{page.name}:{command.line}: {command.text}"
        print(f"{where}\n{finished.stdout}{finished.stderr}")
        assert finished.returncode == 0, f"{where}\nended with {finished.returncode}"
        return finished.stdout

    def _say_hosts(self) -> None:
        """Names of services stand in manifests; nothing here resolves them, so the files say addresses."""
        hosts = self._hosts()
        for file in (self.directory / "examples").rglob("*.yaml"):
            text = file.read_text(encoding="utf-8")
            for name, address in hosts.items():
                text = text.replace(name, address)
            file.write_text(text, encoding="utf-8")


@asynccontextmanager
async def machines(kube: Kube, plane: ControlPlane, directory: Path) -> AsyncIterator[PodRunner]:
    """Run the pods of the namespace that the pages use, and answer `kubectl logs`.

    In the end the namespace is gone, and what Helm put beside it: policies would bind the tests that come after.
    """
    certificate, key = plane.server_certificate("kubelet", plane.network.server)
    runner = PodRunner(Kube(plane.admin, NAMESPACE), plane.network, directory / "pods")
    await runner.start()
    async with serving_logs(runner, plane.network.server, certificate, key):
        yield runner
    await runner.stop()
    if plane.api.running:
        for resource in CLUSTER_WIDE:
            for left in await kube.list(resource, labels="app.kubernetes.io/name=tidemark"):
                await kube.delete(resource, left["metadata"]["name"])
        await kube.delete("namespaces", NAMESPACE)
        await kube.wait_gone("namespaces", NAMESPACE)
    await runner.kube.close()


def shell(plane: ControlPlane, runner: PodRunner, directory: Path, services: Mapping[str, str]) -> Shell:
    """A shell in a checkout with the programs that pages ask for; `services` are names and the pods behind them."""
    programs = directory / "programs"
    programs.mkdir()
    (programs / "kubectl").symlink_to(plane.programs["kubectl"])
    # The definitions are there already in an API server that other tests use too.
    (programs / "helm").write_text(
        f'#!/bin/sh\n[ "$1" = install ] && set -- "$@" --take-ownership\nexec {plane.programs["helm"]} "$@"\n')
    (programs / "helm").chmod(0o755)
    for folder in ("charts", "docs"):
        (directory / folder).symlink_to(REPOSITORY / folder)
    shutil.copytree(REPOSITORY / "examples", directory / "examples")
    kubeconfig = directory / "kubeconfig"
    shutil.copy(plane.kubeconfig(), kubeconfig)

    def hosts() -> dict[str, str]:
        known = {worker.pod.name: worker.pod.address for worker in runner.workers()}
        runner.hosts |= {name: known[pod] for name, pod in services.items() if pod in known}
        return runner.hosts

    return Shell(directory, {
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "KUBECONFIG": str(kubeconfig), "HOME": str(directory)}, hosts)
