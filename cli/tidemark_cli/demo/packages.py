"""The demo's data: changes of Debian packages over three releases, one JSON line each, keyed by package."""

from __future__ import annotations

import gzip
import json
import sysconfig
from pathlib import Path
from typing import NamedTuple

from ..failures import CommandFailed

FILE_NAME = "debian-packages-small.ndjson.gz"
ADVICE = f"Run it in a checkout of Tidemark, or give the file with --data (examples/data/{FILE_NAME})."


class Change(NamedTuple):
    """One line of the data: `value` is the line as it stands."""

    key: bytes
    value: bytes


def find(given: Path | None) -> Path:
    """Return the data file: the one given, else that of the checkout or the wheel this package comes from."""
    if given is not None:
        if not given.is_file():
            raise CommandFailed(f"there is no file {given}", ADVICE)
        return given
    in_checkout, in_wheel = Path("examples", "data"), Path("share", "tidemark")
    for folder in (
        Path(__file__).resolve().parents[3] / in_checkout, Path(sysconfig.get_path("data")) / in_wheel,
        Path.cwd() / in_checkout,
    ):
        if (path := folder / FILE_NAME).is_file():
            return path
    raise CommandFailed(f"the bundled data {FILE_NAME} is not here", ADVICE)


def load(path: Path) -> list[Change]:
    """Return every change in the file's order; raises CommandFailed naming the line that is wrong."""
    changes = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                value = line.rstrip(b"\r\n")
                if value:
                    changes.append(Change(_key(value, number, path), value))
    except (OSError, EOFError) as error:
        raise CommandFailed(f"cannot read {path}: {error}", ADVICE) from None
    if not changes:
        raise CommandFailed(f"{path} holds no change", ADVICE)
    return changes


def _key(line: bytes, number: int, path: Path) -> bytes:
    try:
        key = json.loads(line)["key"]
    except (ValueError, KeyError, TypeError):
        key = None
    if not isinstance(key, str) or not key:
        raise CommandFailed(f"{path}, line {number}: no field `key` with the name of a package", ADVICE)
    return key.encode()
