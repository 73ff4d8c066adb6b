"""docs/quickstart-kubernetes.md, command by command, as a user with a shell in the checkout would run it.

Stays out: the cluster that it runs on.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.kube.walkthrough import Command, commands

from .commands import Failed, say
from .places import REPOSITORY, Places

PAGE = REPOSITORY / "docs" / "quickstart-kubernetes.md"
COMMAND_S = 1800
CLEAN_UP_S = 120
"""For each command of the clean-up after a failure."""
IMAGES = ("export REGISTRY", "docker ")
INSTALL = ("helm install", "kubectl config set-context", "kubectl rollout status")
RECORDS = 1000


class Shell:
    """One shell session in the checkout."""

    def __init__(self, places: Places, kubeconfig: Path) -> None:
        self._log = places.logs / "quickstart.log"
        self._environment = {
            **os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(places.state),
            "PATH": os.pathsep.join([str(places.programs), str(Path(sys.executable).parent), os.environ["PATH"]])}

    def run(self, text: str, timeout_s: float = COMMAND_S) -> str:
        """Run a command and return its standard output.  Raises Failed with what it printed."""
        if exported := re.fullmatch(r"export (\w+)=(\S+)", text):
            self._environment[exported[1]] = exported[2]
            return ""
        began = time.monotonic()
        try:
            finished = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text], cwd=REPOSITORY, env=self._environment,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"$ {text}\nno end within {timeout_s:g} s") from late
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"$ {text}\n{finished.stdout}{finished.stderr}\n")
        first = text.splitlines()[0]
        say(f"  $ {first}  ({time.monotonic() - began:.1f} s)")
        if finished.returncode:
            raise Failed(f"$ {text}\nexit code {finished.returncode}\n{(finished.stdout + finished.stderr)[-4000:]}")
        return finished.stdout


def page_commands(*beginnings: str) -> list[str]:
    """Return the page's commands that begin so, in its order."""
    return [command.text for command in commands(PAGE) if command.text.startswith(beginnings)]


def run_page(shell: Shell) -> None:
    """Run every command of the page and compare what readers count with what the page shows."""
    read = 0
    for command in commands(PAGE):
        try:
            output = shell.run(command.text)
        except Failed as failed:
            raise Failed(f"{PAGE.name}:{command.line}: {failed}") from failed
        if command.text == "kubectl logs reader":
            check_count(command, output)
            read += 1
    if read != 2:
        raise Failed(f"{PAGE.name} reads {read} times, not twice")


def clean_up(shell: Shell) -> None:
    """Run the clean-up of the page after a failure; some of it may not be there."""
    page = [command.text for command in commands(PAGE)]
    for command in page[page.index("kubectl delete pod writer reader"):]:
        try:
            shell.run(command, CLEAN_UP_S)
        except Failed as failed:
            say(str(failed).splitlines()[-1])


def check_count(command: Command, output: str) -> None:
    """Raise Failed unless a reader counted every record."""
    if not output.strip() == command.shown.strip() == str(RECORDS):
        raise Failed(f"{PAGE.name}:{command.line}: {command.text}: {output!r}, not {RECORDS}")
