"""The chart through Helm: rendered, and installed into an API server.

`python -m tests.kube.helm` writes `charts/rendered/`, which a release has for machines without Helm (`make rendered`).
Stays out: what the chart should hold (`test_chart_on_a_server`).
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from . import binaries

CHART = Path(__file__).parents[2] / "charts" / "tidemark"
RENDERED = CHART.parent / "rendered"
RENDERED_NAMESPACE = "tidemark-system"
RENDERINGS: Mapping[str, Mapping[str, Any]] = {
    "tidemark.yaml": {},
    "etcd-for-trials.yaml": {"etcd": {"enabled": True}},
    "monitoring.yaml": {
        "metrics": {name: {"enabled": True} for name in ("podMonitor", "rules", "dashboards")}},
}
"""Files of `charts/rendered/` by the values they are rendered with; the first has what the others do not repeat."""


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
        tests: bool = False, chart: Path = CHART,
    ) -> list[dict[str, Any]]:
        """Return what `helm template` renders; the hooks that only `helm test` runs instead, with `tests`."""
        text = self.run(
            "template", "tidemark", str(chart), f"--namespace={namespace}", f"--kube-version={kube_version}",
            values=values)
        return [
            document for document in yaml.safe_load_all(text)
            if document and ("helm.sh/hook" in document["metadata"].get("annotations", {})) == tests]

    def rendered_files(self) -> dict[str, str]:
        """Return what `charts/rendered/` holds: everything but the definitions, which `crds/` holds."""
        made: dict[str, str] = {}
        plain: list[dict[str, Any]] = []
        for name, values in RENDERINGS.items():
            documents = self.render(RENDERED_NAMESPACE, values={**values, "crds": {"install": False}})
            documents = [document for document in documents if document not in plain]
            plain = plain or documents
            made[name] = NOTE.format(values=json.dumps(values)) + yaml.dump_all(
                documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
        return made


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(
    "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None))


NOTE = (
    f"# Rendered from charts/tidemark for the namespace {RENDERED_NAMESPACE} with the values {{values}}.\n"
    "# Not written by hand: `make rendered`.  docs/kubernetes.md says how it is installed.\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        program = binaries.prepare(print)["helm"]
        for name, text in Helm(program, Path(scratch)).rendered_files().items():
            RENDERED.mkdir(exist_ok=True)
            (RENDERED / name).write_text(text, encoding="utf-8")
            print(RENDERED / name)


if __name__ == "__main__":
    main()
