"""Context: what every benchmark is given: how long to measure, where to write, how to say what goes on."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Context:
    """`directory` is on the disk to be measured; whatever is put there goes away with the run."""

    directory: Path
    quick: bool = False

    def seconds(self, *, full: float, quick: float) -> float:
        return quick if self.quick else full

    def count(self, *, full: int, quick: int) -> int:
        return quick if self.quick else full

    def say(self, text: str) -> None:
        """Tell people what happens now; results go to standard output, this does not."""
        print(f"  {text}", file=sys.stderr, flush=True)

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """Give an empty directory that is removed at the end."""
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
