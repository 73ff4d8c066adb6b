"""`kubectl tidemark` as people run it: kubectl finds the plugin on PATH, which speaks as the user of a kubeconfig.

Stays out: what it should say (the tests).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.ran import Ran

from .client import Kube
from .control_plane import ControlPlane
from .operators import bind, roles

REPOSITORY = Path(__file__).parents[2]
SCRIPT = "kubectl-tidemark"


class Plugin:
    """One user in one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str, user: str, directory: Path) -> None:
        programs = directory / "programs"
        programs.mkdir()
        _install(programs / SCRIPT)
        (programs / "kubectl").symlink_to(plane.programs["kubectl"])
        self._namespace = namespace
        self._environment = {
            **os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "160",
            "KUBECONFIG": str(plane.kubeconfig(plane.user(user))), "HOME": str(directory)}

    async def __call__(self, *arguments: str, code: int = 0) -> Ran:
        """Run it; AssertionError when it does not end with `code`."""
        command = ["kubectl", "tidemark", *arguments, "--namespace", self._namespace]
        finished = await asyncio.to_thread(
            subprocess.run, command, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120, check=False)
        print("$", *command, f"-> {finished.returncode}\n{finished.stderr}{finished.stdout}")  # seen where a test fails
        assert finished.returncode == code, f"{command}: {finished.returncode}\n{finished.stdout}{finished.stderr}"
        return Ran(finished.returncode, finished.stdout, finished.stderr)


def _install(script: Path) -> None:
    """Write what pip makes of the entry point: the environment may be that of another checkout."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"][SCRIPT].partition(":")
    script.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n", encoding="utf-8")
    script.chmod(0o755)


async def allow_sre(kube: Kube, plane: ControlPlane, user: str, directory: Path) -> None:
    """Give a user in the test's namespace what the chart's role tidemark-sre gives, and no more."""
    await kube.apply((await roles(plane, directory))["tidemark-sre"], manager="helm-template")
    await bind(kube, "tidemark-sre", user)
