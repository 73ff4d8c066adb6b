"""The file of named clusters as it is: where it lies, and what it says.  Light: the command line reads it at its start.

Stays out: what a profile means (`tidemark.profiles`).
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

CONFIG_VARIABLE, PROFILE_VARIABLE, GROUP_VARIABLE = "TIDEMARK_CONFIG", "TIDEMARK_PROFILE", "TIDEMARK_GROUP"


def config_file() -> Path:
    """Return where the profiles are."""
    if given := os.environ.get(CONFIG_VARIABLE):
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tidemark" / "profiles.toml"


def read() -> dict[str, Any]:
    """Return the document, an empty one where there is no file; raises OSError, ValueError."""
    try:
        return tomllib.loads(config_file().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def default_group(profile: str) -> str:
    """Return the group of a profile, else of the current one; empty where none is known: who uses it hears why."""
    try:
        document = read()
        table = document.get("profiles", {}).get(profile or document.get("current", ""), {})
        return str(table.get("group", ""))
    except (OSError, ValueError, AttributeError, TypeError):
        return ""
