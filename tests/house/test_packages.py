"""The distribution: its name, what each extra brings, and what `import tidemark` loads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import tidemark
from packaging.requirements import Requirement
from tidemark_wire import extras
from tidemark_wire.version import VERSION

from tests.house.test_tidiness import texts

REPOSITORY = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
PACKAGES = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
CLIENT = {"google-crc32c", "grpcio", "protobuf", "pyarrow", "uvloop", "xxhash"}
OTHER_PROJECT = re.compile(
    r"pip install (?:-\S+ )*['\"]?tidemark(?![a-z/-])|\b(?:version|version_of|distribution)\(['\"]tidemark['\"]\)")


def names(requirements: list[str]) -> set[str]:
    return {Requirement(text).name for text in requirements}


def test_the_base_is_the_client_and_extras_hold_the_rest() -> None:
    assert PROJECT["name"] == extras.DISTRIBUTION == "tidemarkdb"
    assert names(PROJECT["dependencies"]) == CLIENT
    assert set(PROJECT["optional-dependencies"]) == {"cli", "node", "operator", "spark", "sim", "dev"}
    for extra, wanted in PROJECT["optional-dependencies"].items():
        assert not names(wanted) & CLIENT, extra
    of_spark = map(Requirement, PROJECT["optional-dependencies"]["spark"])
    (pyspark,) = (each for each in of_spark if each.name == "pyspark")
    assert pyspark.specifier.contains("4.2.0") and not pyspark.specifier.contains("4.1.4")


def test_a_library_of_two_extras_has_one_range() -> None:
    ranges: dict[str, set[str]] = defaultdict(set)
    for text in (one for wanted in PROJECT["optional-dependencies"].values() for one in wanted):
        ranges[Requirement(text).name].add(text)
    assert not [found for found in ranges.values() if len(found) > 1]


def test_no_text_names_the_package_of_another_project() -> None:
    found = [f"{name}: {match.group()!r}" for name, text in texts()
             if not name.startswith("tests/house/") and (match := OTHER_PROJECT.search(text))]
    assert not found


@pytest.mark.parametrize(("text", "seen"), [
    ("pip install tidemark\n", True), ("pip install 'tidemark[cli]'", True), ("pip install -U tidemark", True),
    ("version('tidemark')", True), ('version_of("tidemark")', True), ("pip install tidemarkdb", False),
    ("pip install 'tidemarkdb[cli]'", False), ("pip install --no-cache-dir /wheels/tidemarkdb.whl", False)])
def test_the_name_of_another_project_would_be_seen(text: str, seen: bool) -> None:
    assert bool(OTHER_PROJECT.search(text)) is seen


def test_there_is_one_version() -> None:
    assert tidemark.__version__ == VERSION
    try:
        assert version(extras.DISTRIBUTION) == VERSION, "install this checkout once more"
    except PackageNotFoundError:
        pytest.fail("these tests run in an environment where this checkout is installed")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (REPOSITORY / package / "py.typed").is_file()


def loaded(program: str) -> set[str]:
    """Return the packages, by the first part of their name, that a program has loaded at its end."""
    report = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    command = [sys.executable, "-c", f"{program}\n{report}"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(finished.stdout))


def test_importing_the_client_loads_nothing_of_nodes_operators_and_the_command_line() -> None:
    found = loaded("import tidemark, tidemark.sync")
    assert {"tidemark", "grpc", "pyarrow"} <= found
    assert not found & {
        "tidemark_node", "tidemark_operator", "tidemark_cli", "tidemark_sim", "rocksdict", "typer", "pydantic", "rich",
        "prometheus_client", "msgspec", "yaml", "cryptography", "aetcd", "kopf", "kubernetes"}


def test_the_simulator_runs_on_the_base() -> None:
    found = loaded("import tidemark_sim.runner, tidemark_sim.profiles")
    assert not found & {"grpc", "pyarrow", "msgspec", "pydantic"}


def test_the_public_names_are_those_of_the_page() -> None:
    page = (REPOSITORY / "docs" / "client.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^## Public names\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    listed = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(tidemark.__all__)
    assert dir(tidemark) == sorted(listed) and all(hasattr(tidemark, name) for name in listed)
    modules = {name for name, what in vars(tidemark).items() if type(what) is type(sys) and name in tidemark.__all__}
    assert modules == {"errors", "sync"}


# --- extras -------------------------------------------------------------------------------------------------


def ended(code: str) -> tuple[int, str]:
    """Return exit code and standard error of a program in which the libraries of all extras are missing."""
    missing = "import sys; sys.modules.update(dict.fromkeys(['typer', 'msgspec', 'rocksdict', 'pydantic', 'aetcd']))"
    command = [sys.executable, "-c", f"{missing}\n{code}"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return finished.returncode, finished.stderr


@pytest.mark.parametrize(("code", "extra"), [
    ("from tidemark_cli.main import main; main()", "cli"),
    ("from tidemark_cli.main import kubectl; kubectl()", "cli,operator"),
    ("import runpy; runpy.run_module('tidemark_node')", "node"),
    ("import runpy; runpy.run_module('tidemark_operator')", "operator"),
])
def test_a_program_without_its_extra_names_it(code: str, extra: str) -> None:
    status, said = ended(code)
    assert status == 1
    assert f"hint:  pip install 'tidemarkdb[{extra}]'" in said
    assert "Traceback" not in said


def test_a_missing_module_of_our_own_or_of_python_is_a_bug() -> None:
    for name in ("tidemark_node.gone", "fcntl.gone"):
        with pytest.raises(ModuleNotFoundError), extras.needs("node"):
            raise ModuleNotFoundError(name, name=name)
