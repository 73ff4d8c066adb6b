"""The Dockerfile: linted, and held against what the chart, the operator and pyproject.toml say of the same things."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement
from tidemark_operator.kube.builders import HTTP_PORT, IMAGE, NODE_PORT, USER
from tidemark_wire.version import VERSION

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tools"))

from lock_images import BUILD, EXTRAS, IMAGES, LEFT_OUT  # noqa: E402

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


class Pin(NamedTuple):
    """One package of a lock file."""

    version: str
    hashes: tuple[str, ...]
    needed_by: frozenset[str]


PIN = re.compile(r"^([a-z0-9-]+)==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)((?:    #.*\n)*)", re.MULTILINE)
HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})(?: \\)?$", re.MULTILINE)


def lock(name: str) -> dict[str, Pin]:
    """Return the packages of a lock file; fails where a line of it is part of none."""
    text = (IMAGES / f"{name}.txt").read_text(encoding="utf-8")
    assert not re.sub(r"^#.*\n", "", PIN.sub("", text), flags=re.MULTILINE), f"{name}.txt has lines that are no pin"
    return {
        pin[1]: Pin(pin[2], tuple(HASH.findall(pin[3])), frozenset(
            word for word in re.findall(r"[a-z0-9-]+(?: \(pyproject\.toml\))?", pin[4].replace("# via", ""))))
        for pin in PIN.finditer(text)}


def declared(name: str) -> list[Requirement]:
    """Return what pyproject.toml asks for in an image, and of the packages that build the wheel."""
    optional = PROJECT["project"]["optional-dependencies"]
    wanted = PROJECT["build-system"]["requires"] if name == BUILD else [
        *PROJECT["project"]["dependencies"], *(one for extra in EXTRAS[name] for one in optional[extra])]
    return [one for one in map(Requirement, wanted) if one.name != LEFT_OUT]


def test_lint_finds_nothing() -> None:
    assert lint(DOCKERFILE) == []


@pytest.mark.parametrize(("right", "wrong", "rule"), [
    ("slim-bookworm\n", "slim-bookworm\nFROM python\n", "DL3006"),
    ("STOPSIGNAL SIGTERM", "RUN cd /opt && ls", "DL3003"),
    ('ENTRYPOINT ["python", "-m", "tidemark_node"]', "ENTRYPOINT python -m tidemark_node", "DL3025"),
    ("pip wheel --no-cache-dir", "pip install hatchling && pip wheel --no-cache-dir", "DL3013"),
    ("groupadd --gid 65532", "groupadd --gid $GROUP", "SC2086"),
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
        assert "--require-hashes --requirement=" in install or "--no-index --no-deps /wheels/" in install
    assert "--no-build-isolation" in DOCKERFILE, "else pip fetches what builds the wheel, without hashes"
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
    assert image in EXTRAS[image]
    environment = stages(DOCKERFILE)[f"{image}-environment"]
    assert re.findall(r"--requirement=(\S+)", environment) == [f"/{image}.txt"]
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
    assert "cli" in EXTRAS["operator"]
    assert "import tidemark_operator.main, tidemark_operator.kube.main, tidemark_cli.commands" in DOCKERFILE


def test_what_is_copied_is_what_the_wheel_is_built_from() -> None:
    copied = re.findall(r"^COPY ([^-\n].*) \S+$", stages(DOCKERFILE)["wheel"], re.MULTILINE)
    sources = {name for each in copied for name in each.split()}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sources == {
        "images/build.txt", "pyproject.toml", PROJECT["project"]["readme"], "LICENSE",
        *(package.split("/")[0] for package in wheel["packages"]), *wheel["shared-data"]}
    passed = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
              if line.startswith("!")]
    assert sorted(passed) == sorted({*sources, *(f"images/{name}.txt" for name in EXTRAS)})


def test_versions_agree() -> None:
    chart = yaml.safe_load((REPOSITORY / "charts/tidemark/Chart.yaml").read_text(encoding="utf-8"))
    (version,) = re.findall(r"^ARG VERSION=(.*)$", DOCKERFILE, re.MULTILINE)
    assert version == VERSION == chart["appVersion"]


@pytest.mark.parametrize("name", [BUILD, *EXTRAS])
def test_every_package_of_an_image_is_pinned_with_hashes_as_pyproject_asks(name: str) -> None:
    pins = lock(name)
    direct = {re.sub(r"[._-]+", "-", one.name).lower(): one for one in declared(name)}
    for package, requirement in direct.items():
        assert package in pins, f"{package} is missing in images/{name}.txt: run `make lock`"
        assert requirement.specifier.contains(pins[package].version), f"{requirement}: run `make lock`"
    for package, pin in pins.items():
        assert pin.hashes, f"{package} has no hash"
        assert len(set(pin.hashes)) == len(pin.hashes)
        parents = {parent for parent in pin.needed_by if not parent.startswith("tidemarkdb")}
        assert package in direct or parents & pins.keys(), f"nothing needs {package}: run `make lock`"
    assert LEFT_OUT not in pins
    if name != BUILD:
        assert {package for package, pin in pins.items() if "tidemarkdb (pyproject.toml)" in pin.needed_by} == (
            direct.keys()), "run `make lock`"


def test_images_have_one_version_of_each_package() -> None:
    node, operator = lock("node"), lock("operator")
    assert {name: pin for name, pin in node.items() if name in operator and operator[name][:2] != pin[:2]} == {}


@pytest.mark.parametrize("broken", [
    "uvloop==0.23.0\n", "uvloop==0.23.0 \\\n    --hash=md5:00\n    # via x\n", "uvloop>=0.23.0\n",
])
def test_a_line_without_a_hash_is_seen(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node.txt").write_text((IMAGES / "node.txt").read_text(encoding="utf-8") + broken, encoding="utf-8")
    monkeypatch.setitem(globals(), "IMAGES", tmp_path)
    with pytest.raises(AssertionError):
        test_every_package_of_an_image_is_pinned_with_hashes_as_pyproject_asks("node")
