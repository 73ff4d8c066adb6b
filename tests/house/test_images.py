"""The Dockerfile: linted, and held against what the chart, the operator and pyproject.toml say of the same things."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from tidemark_operator.kube.builders import HTTP_PORT, IMAGE, NODE_PORT, USER
from tidemark_wire.version import VERSION

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
HADOLINT = Path(sys.executable).with_name("hadolint")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


def lint(text: str) -> list[str]:
    """Return the rules that a Dockerfile breaks."""
    command = [HADOLINT, "--no-fail", "--format=json", "-"]
    finished = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=True)
    return [each["code"] for each in json.loads(finished.stdout)]


def stages(text: str) -> dict[str, str]:
    """Return the text of every stage by its name."""
    parts = re.split(r"^FROM \S+ AS (\S+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def extras(image: str) -> list[str]:
    """Return the extras that an image installs."""
    (found,) = re.findall(r'"\$\{wheel\}\[(.*)\]"', stages(DOCKERFILE)[f"{image}-environment"])
    return found.split(",")


def test_lint_finds_nothing() -> None:
    assert lint(DOCKERFILE) == []


@pytest.mark.parametrize(("right", "wrong", "rule"), [
    ("slim-bookworm\n", "slim-bookworm\nFROM python\n", "DL3006"),
    ("STOPSIGNAL SIGTERM", "RUN cd /opt && ls", "DL3003"),
    ('ENTRYPOINT ["python", "-m", "tidemark_node"]', "ENTRYPOINT python -m tidemark_node", "DL3025"),
    ("pip wheel --no-cache-dir", "pip install hatchling && pip wheel --no-cache-dir", "DL3013"),
    ("for wheel in /wheels/*.whl", "for wheel in $WHEELS/*.whl", "SC2231"),
    ("WORKDIR /src", "WORKDIR src", "DL3000"),
    ("COPY core core", "COPIES core core", "DL1000"),
])
def test_lint_finds_a_mistake(right: str, wrong: str, rule: str) -> None:
    assert right in DOCKERFILE
    assert rule in lint(DOCKERFILE.replace(right, wrong, 1))


def test_nothing_runs_as_root_and_nothing_is_compiled() -> None:
    users = re.findall(r"^USER (.*)$", stages(DOCKERFILE)["runtime"], re.MULTILINE)
    assert users == [f"{USER}:{USER}"]
    for name in ("operator", "node"):
        assert re.search(rf"^FROM runtime AS {name}$", DOCKERFILE, re.MULTILINE)
        assert "USER" not in stages(DOCKERFILE)[name]
        assert not re.search(r"^(?:RUN|ADD)", stages(DOCKERFILE)[name], re.MULTILINE)
    for install in re.findall(r"pip install [^\n]*", DOCKERFILE):
        assert "--only-binary=:all:" in install
        assert "--constraint=" in install
    assert not re.search(r"apt-get|apk |gcc|curl|wget", DOCKERFILE)


def test_the_base_is_pinned_and_the_python_is_one_that_the_project_takes() -> None:
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=\S+/python:(\S+)$", DOCKERFILE, re.MULTILINE)
    version = re.fullmatch(r"(\d+)\.(\d+)\.\d+-slim-\w+", base)
    assert version
    assert f">={version[1]}.{version[2]}" == PROJECT["project"]["requires-python"]
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}", "install", "runtime"}


@pytest.mark.parametrize(("image", "module", "ports"), [
    ("operator", "tidemark_operator", [HTTP_PORT]), ("node", "tidemark_node", [NODE_PORT, HTTP_PORT])])
def test_an_image_starts_what_the_chart_expects(image: str, module: str, ports: list[int]) -> None:
    stage = stages(DOCKERFILE)[image]
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", stage, re.MULTILINE)
    assert json.loads(entry) == ["python", "-m", module]
    assert importlib.util.find_spec(f"{module}.__main__")
    (exposed,) = re.findall(r"^EXPOSE (.*)$", stage, re.MULTILINE)
    assert [int(port) for port in exposed.split()] == ports
    assert image in extras(image)
    assert f'org.opencontainers.image.title="tidemark-{image}"' in stage
    values = yaml.safe_load((REPOSITORY / "charts/tidemark/values.yaml").read_text(encoding="utf-8"))
    repository = values["image" if image == "operator" else "nodeImage"]["repository"]
    assert repository.endswith(f"/tidemark-{image}")
    if image == "node":
        assert repository == IMAGE


def test_an_image_has_the_libraries_of_each_command_that_examples_run_in_it() -> None:
    run = []
    files = [*(REPOSITORY / "examples" / "kubernetes").rglob("*.yaml"), *(REPOSITORY / "docs").rglob("*.yaml")]
    for file in files:
        for manifest in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            for container in (manifest or {}).get("spec", {}).get("containers", ()):
                image = re.search(r"/tidemark-(\w+)[:@]", container["image"])
                if image and re.search(r"\btidemark ", " ".join(container.get("command", ()))):
                    run.append(image[1])
    assert set(run) == {"operator"}, "the quickstart writes and reads"
    assert "cli" in extras("operator")
    assert "import tidemark_operator.main, tidemark_operator.kube.main, tidemark_cli.commands" in DOCKERFILE


def test_what_is_copied_is_what_the_wheel_is_built_from() -> None:
    copied = re.findall(r"^COPY ([^-\n].*) \S+$", stages(DOCKERFILE)["wheel"], re.MULTILINE)
    sources = {name for each in copied for name in each.split()}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sources == {
        "images/constraints.txt", "pyproject.toml", PROJECT["project"]["readme"], "LICENSE",
        *(package.split("/")[0] for package in wheel["packages"]), *wheel["shared-data"]}
    passed = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
              if line.startswith("!")]
    assert sorted(passed) == sorted(sources)


def test_versions_agree() -> None:
    chart = yaml.safe_load((REPOSITORY / "charts/tidemark/Chart.yaml").read_text(encoding="utf-8"))
    (version,) = re.findall(r"^ARG VERSION=(.*)$", DOCKERFILE, re.MULTILINE)
    assert version == VERSION == chart["appVersion"]


def test_every_dependency_is_pinned_within_its_range() -> None:
    text = (REPOSITORY / "images/constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", text, re.MULTILINE))
    pins = {re.sub(r"[._-]+", "-", name).lower(): version for name, version in pins.items()}
    optional = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"],
              *(one for extra in {*extras("node"), *extras("operator")} for one in optional[extra])]
    for text in wanted:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name]), requirement
