"""The tests of this folder under the oldest release of PySpark that the source takes; the newest one is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.servers
OLDEST = "4.2.0"
FOLDER = Path(__file__).parent
PLUGIN = "def pytest_report_header():\n    import pyspark\n    return f'pyspark {pyspark.__version__} is tested'\n"


@pytest.mark.timeout(900)
def test_p2_the_oldest_release_that_is_taken_passes_the_tests_of_the_newest(tmp_path: Path) -> None:
    installed = tmp_path / "packages"
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(installed), f"pyspark=={OLDEST}"],
        check=True, timeout=600)
    (installed / "which_pyspark.py").write_text(PLUGIN, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", FOLDER, "-m", "not full", "-k", "not on_real_nodes", "-p", "which_pyspark"],
        capture_output=True, text=True, timeout=600, cwd=FOLDER.parents[1], check=False,
        env={**os.environ, "PYTHONPATH": str(installed)})
    assert f"pyspark {OLDEST} is tested" in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.returncode == 0, done.stdout[-8000:]
