"""The demo's Spark act: what plain Python counts, what is said where Spark cannot run, and a job that fails."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tidemark_cli.demo import packages, spark
from tidemark_cli.demo.packages import Change
from tidemark_cli.demo.screen import Screen
from tidemark_cli.failures import CommandFailed


def change(key: str, op: str = "put", **doc: object) -> Change:
    value: dict[str, object] = {"op": op, "key": key}
    return Change(key.encode(), json.dumps({**value, "doc": doc} if op == "put" else value).encode())


CHANGES = [
    change("a", section="net", installed_kib=5), change("b", section="net", installed_kib=7),
    change("c", section="admin", installed_kib=1), change("a", section="net", installed_kib=6), change("c", "delete"),
    change("d", section="web"),
]
COUNTED = {"net": (2, 13), "web": (1, None)}


def test_the_latest_change_of_each_package_counts() -> None:
    assert spark.by_section(CHANGES) == COUNTED
    bundled = spark.by_section(packages.load(packages.find(None)))
    assert bundled is not None and bundled["net"] == (2147, 6_274_696)


@pytest.mark.parametrize("other", [
    Change(b"k", b'{"key":"k","op":"put"}'), change("k", section=5), change("k", installed_kib="5"),
    change("k", installed_kib=True)])
def test_data_of_another_shape_is_not_counted(other: Change) -> None:
    assert spark.by_section([*CHANGES, other]) is None


def java(folder: Path, says: str) -> None:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize(("says", "sentence"), [
    ('openjdk version "17.0.15" 2025-04-15', ""), ('java version "25" 2025-09-16 LTS', ""),
    ('java version "1.8.0_402"', " is 8"), ('openjdk version "11.0.2" 2019-01-15', " is 11"),
    ("Segmentation fault", " is of no known version")])
def test_an_older_java_is_named_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, sentence: str
) -> None:
    java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    wanted = f"Spark needs Java 17 or newer, and {tmp_path}/bin/java{sentence}" if sentence else ""
    assert spark.lack() == wanted


def test_no_java_and_no_pyspark_are_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert spark.lack() == f"Spark needs Java 17 or newer, and there is none in JAVA_HOME, {tmp_path}"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert spark.lack() == "Spark needs Java 17 or newer, and there is none on PATH"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert spark.lack() == "PySpark is not installed; pip install 'tidemarkdb[spark]'"


class Told:
    """A screen that keeps what it shows."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self.screen = Screen(Console(file=self._text, width=100))

    @property
    def text(self) -> str:
        return self._text.getvalue()


async def act(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: list[Any], missing: int = 0
) -> tuple[spark.Findings, str]:
    """Run the act with a job that prints these rows, and a copy that lacks so many."""

    async def job(*_: object) -> Any:
        return {"spark": "4.3.0", "rows": rows, "copied": 6, "copy_mismatches": missing}

    async def made(*_: object, **__: object) -> None: ...

    monkeypatch.setattr(spark, "lack", lambda: "")
    monkeypatch.setattr(spark, "create_group", made)
    monkeypatch.setattr(spark, "_job", job)
    told = Told()
    runtime: Any = SimpleNamespace(bootstrap=lambda: ["127.0.0.1:1"])
    service: Any = None
    return await spark.run(service, runtime, "packages", CHANGES, tmp_path, told.screen), told.text


async def test_the_table_is_shown_and_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, text = await act(monkeypatch, tmp_path, [["net", 2, 13], ["web", 1, None]])
    assert (found.sections, found.mismatches, found.good) == (2, 0, True)
    assert "Spark 4.3.0: 2 sections" in text and "installed MiB" in text


@pytest.mark.parametrize("rows", [
    [["net", 2, 12], ["web", 1, None]], [["net", 1, 13], ["web", 1, None]], [["net", 2, 13]],
    [["net", 2, 13], ["web", 1, None], ["admin", 1, 1]]])
async def test_a_section_that_differs_is_a_mismatch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: list[Any]
) -> None:
    found, _ = await act(monkeypatch, tmp_path, rows)
    assert found.mismatches == 1 and not found.good


async def test_a_copy_that_differs_is_not_good(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, text = await act(monkeypatch, tmp_path, [["net", 2, 13], ["web", 1, None]], missing=1)
    assert (found.mismatches, found.copied, found.copy_mismatches, found.good) == (0, 6, 1, False)
    assert "Spark wrote 6 records to LogGroup packages-copy, twice under one id: 1 are missing or more" in " ".join(
        text.split())


async def test_a_job_that_fails_names_its_last_words_and_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'warming up' >&2\necho 'no such cluster' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(spark.sys, "executable", str(broken))
    with pytest.raises(CommandFailed, match="the Spark job ended with code 3: no such cluster"):
        await spark._job(["127.0.0.1:1"], "packages", "copy", tmp_path)
