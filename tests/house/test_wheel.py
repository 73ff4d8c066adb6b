"""The wheel, installed in fresh environments outside the checkout: bare, and with the extras of a local cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

import pytest
from tidemark_wire.version import VERSION

from tests.house.test_packages import CLIENT

pytestmark = pytest.mark.servers

REPOSITORY = Path(__file__).parents[2]
BARE_MIB_MAX = 260   # of which pyarrow takes four fifths
INSTALL_S = 300
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


class Environment(NamedTuple):
    """A virtual environment, and a folder in which its programs run."""

    root: Path
    folder: Path

    def run(self, *command: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run one of its programs as a user would: nothing of this checkout or of the environment of the tests."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
        return subprocess.run(
            [str(self.root / "bin" / command[0]), *command[1:]], cwd=self.folder, env=inherited, capture_output=True,
            text=True, timeout=timeout_s, check=False)

    def install(self, *requirements: str) -> None:
        pip("--python", str(self.root), "install", "--quiet", *requirements)

    def installed(self) -> dict[str, str]:
        listed = json.loads(pip("--python", str(self.root), "list", "--format=json"))
        return {one["name"].lower(): one["version"] for one in listed}


def pip(*arguments: str) -> str:
    """Run the pip of the tests; return what it printed."""
    done = subprocess.run([*PIP, *arguments], capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy of what it is built from."""
    folder = tmp_path_factory.mktemp("wheel")
    probe = subprocess.run(
        [*PIP, "download", "--quiet", "--no-deps", "--dest", str(folder / "probe"), "xxhash"], capture_output=True,
        text=True, timeout=INSTALL_S, check=False)
    if probe.returncode:
        pytest.skip(f"pip reaches no package index: {probe.stderr.strip().splitlines()[-1]}")
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(sources(folder / "source")))
    (found,) = folder.glob("*.whl")
    return found


def sources(folder: Path) -> Path:
    """Copy what the builder of an image gets, so that the build sees nothing else."""
    folder.mkdir()
    for line in (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line.startswith("!"):
            source, target = REPOSITORY / line[1:], folder / line[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
    return folder


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("bare")
    environment = Environment(folder / "env", folder / "elsewhere")
    environment.folder.mkdir()
    venv.create(environment.root, symlinks=True)
    environment.install(str(wheel))
    return environment


@pytest.mark.timeout(300)
def test_a_bare_install_is_the_client(wheel: Path, bare: Environment) -> None:
    assert wheel.name == f"tidemarkdb-{VERSION}-py3-none-any.whl"
    installed = bare.installed()
    assert installed["tidemarkdb"] == VERSION
    assert "tidemark" not in installed, "the package of another project"
    assert set(installed) == {"tidemarkdb", "typing_extensions", *CLIENT}
    (packages,) = (bare.root / "lib").glob("python3*/site-packages")
    size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
    assert size < BARE_MIB_MAX * 2**20, f"{size / 2**20:.0f} MiB"


def test_a_bare_install_runs_the_client_and_the_simulator(bare: Environment) -> None:
    program = (
        "import importlib.resources, sys, tidemark, tidemark.sync\n"
        "found = {'rocksdict', 'typer', 'pydantic', 'tidemark_node', 'tidemark_operator'} & set(sys.modules)\n"
        "typed = (importlib.resources.files('tidemark') / 'py.typed').is_file()\n"
        "print(tidemark.__version__, sorted(found), typed)\n")
    done = bare.run("python", "-c", program)
    assert done.stdout == f"{VERSION} [] True\n", done.stderr
    refused = bare.run(
        "python", "-c", "import tidemark.sync; tidemark.sync.connect('127.0.0.1:1', timeout_s=0.5)")
    assert "tidemark.errors.Unavailable" in refused.stderr
    done = bare.run("python", "-m", "tidemark_sim", "--seed", "7")
    assert done.returncode == 0 and "0 failed" in done.stdout, done.stderr


@pytest.mark.parametrize(("command", "extra"), [
    (("tidemark", "--help"), "cli"), (("tidemark", "--version"), "cli"), (("tidemark", "dev", "up"), "cli"),
    (("kubectl-tidemark", "--help"), "cli,operator"), (("python", "-m", "tidemark_cli"), "cli"),
    (("python", "-m", "tidemark_node", "--help"), "node"),
    (("python", "-m", "tidemark_operator", "--help"), "operator")])
def test_a_bare_install_names_the_extra_of_a_program(bare: Environment, command: tuple[str, ...], extra: str) -> None:
    done = bare.run(*command)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"hint:  pip install 'tidemarkdb[{extra}]'", done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(300)
def test_with_extras_a_local_cluster_and_the_demo_run(wheel: Path, bare: Environment) -> None:
    """The last test of this file: the environment is no longer bare behind it."""
    whole = bare
    fast = "--no-compile"  # Python compiles what a program imports; pip compiles thousands of modules that none does
    whole.install(fast, f"{wheel}[cli]")
    version = whole.run("tidemark", "--version")
    assert version.stdout == f"tidemark {VERSION}\n", version.stderr
    assert "append" in whole.run("tidemark", "--help").stdout
    refused = whole.run("tidemark", "dev", "up")
    assert refused.returncode == 1
    assert "pip install 'tidemarkdb[node]'" in refused.stderr, refused.stderr

    whole.install(fast, f"{wheel}[cli,node,operator]")
    for module in ("tidemark_node", "tidemark_operator"):
        assert whole.run("python", "-m", module, "--help").returncode == 0
    manifests = [str(REPOSITORY / "examples" / name) for name in ("dev-cluster.yaml", "packages-loggroup.yaml")]
    try:
        up = whole.run("tidemark", "dev", "up", "-f", manifests[0], "-f", manifests[1], timeout_s=120)
        assert up.returncode == 0, up.stderr
        (whole.folder / "lines").write_text("one\ntwo\n", encoding="utf-8")
        appended = whole.run("tidemark", "append", "packages", "lines", "--json")
        assert appended.returncode == 0, appended.stderr
        read = whole.run("tidemark", "read", "packages", "--json")
        assert sorted(record["value"] for record in json.loads(read.stdout)) == ["one", "two"], read.stderr
    finally:
        down = whole.run("tidemark", "dev", "down", "--wipe", timeout_s=120)
    assert down.returncode == 0, down.stderr

    demo = whole.run("tidemark", "demo", "--json", timeout_s=240)  # with the data of the wheel
    assert demo.returncode == 0, demo.stderr
    outcome = json.loads(demo.stdout.splitlines()[-1])
    assert outcome["spark_mismatches"] is None
    assert "without Spark: PySpark is not installed; pip install 'tidemarkdb[spark]'" in demo.stderr
    assert (outcome["lost"], outcome["duplicated"], outcome["read_wrong"]) == (0, 0, 0), outcome
