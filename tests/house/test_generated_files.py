"""What is generated and checked in is what the generators write today."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def generate(script: str, output: Path) -> list[Path]:
    """Run a generator into `output`; return what it wrote, relative to it."""
    finished = subprocess.run(
        [sys.executable, str(REPOSITORY / "tools" / script), "--output", str(output)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return sorted(path.relative_to(output) for path in output.rglob("*") if path.is_file())


def assert_fresh(written: Path, checked_in: Path, paths: list[Path]) -> None:
    stale = [
        path.as_posix()
        for path in paths
        if not (checked_in / path).is_file() or (checked_in / path).read_bytes() != (written / path).read_bytes()
    ]
    assert not stale, f"run `make generate` and commit the result; stale: {stale}"


def test_protobuf_modules_are_fresh(tmp_path: Path) -> None:
    paths = generate("generate_protobuf.py", tmp_path)
    assert_fresh(tmp_path, REPOSITORY / "protos", paths)
    left_over = {path.relative_to(REPOSITORY / "protos") for path in (REPOSITORY / "protos").rglob("*_pb2*.py*")}
    left_over = {path for path in left_over if path.suffix in (".py", ".pyi")}
    assert left_over == set(paths), "a generated module has lost its .proto file"


def test_crds_and_reference_are_fresh(tmp_path: Path) -> None:
    paths = generate("generate_resources.py", tmp_path)
    assert_fresh(tmp_path, REPOSITORY, paths)
    here = {path.relative_to(REPOSITORY) for path in (REPOSITORY / "crds").iterdir()}
    assert here == {path for path in paths if path.parent.as_posix() == "crds"}


def test_dashboards_are_fresh(tmp_path: Path) -> None:
    paths = generate("generate_dashboards.py", tmp_path)
    assert_fresh(tmp_path, REPOSITORY, paths)
    here = {path.relative_to(REPOSITORY) for path in (REPOSITORY / "charts/tidemark/files/dashboards").iterdir()}
    assert here == set(paths)


def test_chart_links_to_the_crds() -> None:
    """Helm follows the link when it renders, installs and packages the chart from a checkout."""
    link = REPOSITORY / "charts/tidemark/files/crds"
    assert link.is_symlink() and link.resolve() == REPOSITORY / "crds"


def test_generation_does_not_depend_on_the_order_of_hashes(tmp_path: Path) -> None:
    for seed in ("0", "1"):
        finished = subprocess.run(
            [sys.executable, str(REPOSITORY / "tools/generate_resources.py"), "--output", str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
    for path in (tmp_path / "0").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "1" / path.relative_to(tmp_path / "0")).read_bytes()


@pytest.mark.parametrize("script", ["generate_protobuf.py", "generate_resources.py"])
def test_generator_says_what_it_is_for(script: str) -> None:
    finished = subprocess.run(
        [sys.executable, str(REPOSITORY / "tools" / script), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "make generate" in finished.stdout
