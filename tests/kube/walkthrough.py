"""The commands of a page of the documentation, run one after another as somebody at a shell would.

A command is what stands behind `$ ` in a block, with the lines that a backslash continues it by; what stands below is
its output, an example.  Stays out: what has to be true in the end (the tests).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

COMMAND_S = 300


@dataclass(frozen=True, slots=True)
class Command:
    """One command, the block it stands in and the output that the page shows for it."""

    line: int
    text: str
    shown: str


def commands(page: Path) -> list[Command]:
    """Return what the page's fenced blocks say to run."""
    found: list[Command] = []
    fenced, lines = False, page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced and line.startswith("$ "):
            found.append(Command(number, line[2:], ""))
        elif fenced and found:
            last = found[-1]
            found[-1] = (
                Command(last.line, f"{last.text}\n{line}", "") if last.text.endswith("\\")
                else Command(last.line, last.text, f"{last.shown}{line}\n"))
    return found


class Shell:
    """One shell session: a directory, an environment that `export` changes, and names that only cluster DNS knows."""

    def __init__(self, directory: Path, environment: Mapping[str, str], hosts: Callable[[], Mapping[str, str]]) -> None:
        self.directory = directory
        self._environment = dict(environment)
        self._hosts = hosts

    def run(self, command: Command, page: Path) -> str:
        """Run it and return its standard output; one that fails fails the test, with the line of the page."""
        if exported := re.fullmatch(r"export (\w+)=(\S+)", command.text):
            self._environment[exported[1]] = exported[2]
            return ""
        self._say_hosts()
        finished = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.text], cwd=self.directory, env=self._environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        where = f"{page.name}:{command.line}: {command.text}"
        print(f"{where}\n{finished.stdout}{finished.stderr}")
        assert finished.returncode == 0, f"{where}\nended with {finished.returncode}"
        return finished.stdout

    def _say_hosts(self) -> None:
        """Names of services stand in manifests; nothing here resolves them, so the files say addresses."""
        hosts = self._hosts()
        for file in (self.directory / "examples").rglob("*.yaml"):
            text = file.read_text(encoding="utf-8")
            for name, address in hosts.items():
                text = text.replace(name, address)
            file.write_text(text, encoding="utf-8")
