"""Extras: the name of the extra to install when a program lacks a library.

Stays out: which libraries an extra holds; `pyproject.toml` says so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

DISTRIBUTION = "tidemarkdb"
"""The name of the distribution on package indexes. Its import name is `tidemark`."""


def install_command(*extras: str) -> str:
    """Return the command that installs these extras."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"


@contextmanager
def needs(*extras: str) -> Iterator[None]:
    """Exit with 1 and name the extras when an import within fails for lack of a library."""
    try:
        yield
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        if not name or name.startswith("tidemark") or name in sys.stdlib_module_names:
            raise  # a bug of ours, or an incomplete Python
        print(f"error: the Python package {missing.name!r} is not installed", file=sys.stderr)
        print(f"hint:  {install_command(*extras)}", file=sys.stderr)
        sys.exit(1)
