"""The Spark job: the log that the demo has filled, by section, as Spark and as plain Python see it.

Without PySpark or a Java the act is left out and says so.  Stays out: the job itself (spark_job), exit codes (command).
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypedDict

from tidemark_operator import local
from tidemark_wire.extras import install_command

from ..admin import Admin
from ..failures import FAILED, CommandFailed
from .acts import create_group, within
from .packages import Change
from .screen import Screen

JAVA_OLDEST = 17
PATIENCE_S = 120.0
"""For the start of Spark and its job, on a slow machine."""

Sections = dict[str | None, tuple[int, int | None]]
"""By section: how many packages, and the sum of their installed KiB."""


class Answer(TypedDict):
    """One line of the job."""

    spark: str                                      # its version
    rows: list[tuple[str | None, int, int | None]]  # section, packages, installed KiB
    copied: int                                     # records of the copy
    copy_mismatches: int                            # records that one of the two logs has more often


class Findings(NamedTuple):
    """The result of the comparisons: sections, copied records, and how many differ; None where Spark did not run."""

    sections: int
    mismatches: int | None
    seconds: float
    copied: int = 0
    copy_mismatches: int | None = None

    @property
    def good(self) -> bool:
        """Say whether nothing that was compared differs."""
        return not self.mismatches and not self.copy_mismatches


LEFT_OUT = Findings(0, None, 0.0)
COPY = "packages-copy"


async def run(
    service: Admin, runtime: local.Runtime, group: str, changes: Sequence[Change], directory: Path, screen: Screen
) -> Findings:
    """Run the act.  Raises CommandFailed where the job fails."""
    if why := await asyncio.to_thread(lack):     # it starts a Java
        screen.tell(f"without Spark: {why}", "yellow")
        return LEFT_OUT
    expected = by_section(changes)
    if expected is None:
        screen.tell("without Spark: the data has no sections and sizes of packages", "yellow")
        return LEFT_OUT
    began = screen.seconds
    await create_group(service, runtime, COPY, shards=2, copies=3)
    screen.tell(f"starting Spark on two cores; it counts packages of {group} by section, and copies the log to {COPY}")
    folder = directory / "spark"
    folder.mkdir(exist_ok=True)
    async with within("the Spark job ends", PATIENCE_S):
        answer = await _job(runtime.bootstrap(), group, COPY, folder)
    found: Sections = {section: (packages, kib) for section, packages, kib in answer["rows"]}
    mismatches = sum(expected.get(name) != found.get(name) for name in expected.keys() | found.keys())
    seconds = screen.seconds - began
    screen.tell(f"Spark {answer['spark']}: {len(found)} sections in {seconds:.1f} s, {mismatches} differ from what "
                "plain Python counts", "bold red" if mismatches else "bold green")
    copied, wrong = answer["copied"], answer["copy_mismatches"]
    screen.tell(f"Spark wrote {copied} records to LogGroup {COPY}, twice under one id: {wrong} are missing or more",
                "bold red" if wrong else "bold green")
    screen.table(("section", "packages", "installed MiB"), [
        (name or "", packages, round((kib or 0) / 1024)) for name, (packages, kib) in found.items()])
    return Findings(len(found), mismatches, seconds, copied, wrong)


def by_section(changes: Sequence[Change]) -> Sections | None:
    """Count in plain Python what the job counts; None where the data is of another shape."""
    latest: dict[bytes, Mapping[str, object]] = {}
    for change in changes:
        latest[change.key] = json.loads(change.value)
    found: dict[str | None, tuple[int, int | None]] = {}
    for each in latest.values():
        if each.get("op") != "put":
            continue
        doc = each.get("doc")
        if not isinstance(doc, Mapping):
            return None
        section, kib = doc.get("section"), doc.get("installed_kib")
        if not isinstance(section, str | None) or not (kib is None or type(kib) is int):
            return None
        packages, total = found.get(section, (0, None))
        found[section] = packages + 1, total if kib is None else (total or 0) + kib
    return found


def lack() -> str:
    """Say in one sentence what Spark needs and this machine lacks; nothing where it has all."""
    if importlib.util.find_spec("pyspark") is None:
        return f"PySpark is not installed; {install_command('spark')}"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return f"Spark needs Java {JAVA_OLDEST} or newer, and there is none " + (
            f"in JAVA_HOME, {home}" if home else "on PATH")
    try:
        said = subprocess.run(  # noqa: S603 - the Java that Spark would start
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Spark needs Java {JAVA_OLDEST} or newer, and {java} does not run: {error}"
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) < JAVA_OLDEST:
        found = version[1] if version else "of no known version"
        return f"Spark needs Java {JAVA_OLDEST} or newer, and {java} is {found}"
    return ""


async def _job(endpoints: Sequence[str], group: str, copy: str, folder: Path) -> Answer:
    """Run the job and return what it printed; whatever ends this ends the job and its JVM."""
    log = folder / "spark.log"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidemark_cli.demo.spark_job", ",".join(endpoints), group, copy, str(folder),
            stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
        try:
            printed, _ = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""])[-1]
        raise CommandFailed(
            f"the Spark job ended with code {process.returncode}: {last}", f"Look at {log}.", code=FAILED,
            reason="SPARK_FAILED")
    answer: Answer = json.loads(printed.splitlines()[-1])
    return answer
