"""The floor plan: who may import whom, and the traps of the folder layout."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.syntax import parsed

REPOSITORY = Path(__file__).parents[2]
HOUSES = ("core", "protos", "node", "operator", "client", "cli", "spark", "sim")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)


def test_import_contracts_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    finished = run(str(linter), "--no-logo", "--no-cache")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "0 broken" in finished.stdout


def test_every_house_holds_one_package() -> None:
    for house in HOUSES:
        packages = [path.parent.name for path in (REPOSITORY / house).glob("*/__init__.py")]
        assert len(packages) == 1, f"{house}: {packages}"


def test_houses_are_plain_folders() -> None:
    """`operator/__init__.py` would shadow the standard module for every Python started in the repository root."""
    assert [house for house in HOUSES if (REPOSITORY / house / "__init__.py").exists()] == []


def test_python_started_in_the_root_finds_the_standard_operator() -> None:
    statement = "import operator; print(operator.__file__); operator.itemgetter(0)"
    finished = run(sys.executable, "-c", statement)
    assert finished.returncode == 0, finished.stderr
    assert Path(finished.stdout.strip()).parent == Path(sysconfig.get_path("stdlib"))


def test_python_dash_m_works_in_the_root() -> None:
    finished = run(sys.executable, "-m", "timeit", "-n", "1", "-r", "1", "import operator; operator.itemgetter(0)")
    assert finished.returncode == 0, finished.stderr
    assert "1 loop" in finished.stdout


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_only_the_store_and_its_database_module_know_rocksdb() -> None:
    importers = {
        path.relative_to(REPOSITORY).as_posix()
        for house in HOUSES
        for path in (REPOSITORY / house).rglob("*.py")
        if "rocksdict" in imported_modules(path)
    }
    assert importers == {"node/tidemark_node/store.py", "node/tidemark_node/database.py"}


def test_core_imports_core_and_a_few_harmless_modules_only() -> None:
    """The contract lists what is forbidden; this lists what is allowed, so that a new module has to be argued for."""
    allowed = {
        "__future__", "abc", "base64", "binascii", "bisect", "collections", "dataclasses", "enum", "functools",
        "hashlib", "heapq", "itertools", "json", "math", "operator", "struct", "types", "typing",
        "google_crc32c", "xxhash", "tidemark_core",
    }  # fmt: skip
    outside = {
        f"{path.relative_to(REPOSITORY).as_posix()}: {module}"
        for path in (REPOSITORY / "core").rglob("*.py")
        for module in imported_modules(path) - allowed
    }
    assert outside == set()
