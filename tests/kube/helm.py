"""The chart through Helm: rendered, and installed into an API server.

Stays out: what the chart should hold (`test_chart_on_a_server`).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts" / "tidemark"


class Helm:
    """Runs Helm; what it says when it fails is in the error."""

    def __init__(self, program: Path, directory: Path, kubeconfig: Path | None = None) -> None:
        self._program = program
        self._kubeconfig = kubeconfig
        folders = {name: str(directory / name.lower()) for name in (
            "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
        self._environment = {**folders, "PATH": "/usr/bin:/bin", "HOME": str(directory)}

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        command = [str(self._program), *arguments]
        if self._kubeconfig is not None:
            command.append(f"--kubeconfig={self._kubeconfig}")
        if values is not None:
            command += ["--values", "-"]
        finished = subprocess.run(
            command, input=json.dumps(values or {}), env=self._environment, capture_output=True, text=True, timeout=300,
            check=False)
        if finished.returncode:
            raise AssertionError(f"helm {' '.join(arguments)}: {finished.stdout}{finished.stderr}")
        return finished.stdout

    def render(
        self, namespace: str = "tidemark", *, kube_version: str = "1.36.0", values: Mapping[str, Any] | None = None,
        tests: bool = False,
    ) -> list[dict[str, Any]]:
        """Return what `helm template` renders; the hooks that only `helm test` runs instead, with `tests`."""
        text = self.run(
            "template", "tidemark", str(CHART), f"--namespace={namespace}", f"--kube-version={kube_version}",
            values=values)
        return [
            document for document in yaml.safe_load_all(text)
            if document and ("helm.sh/hook" in document["metadata"].get("annotations", {})) == tests]
