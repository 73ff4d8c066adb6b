"""Node configuration: which settings of a node `config` of a cluster and of its pools may name, and as what flags.

Pure.  What a node is told anyway (its name, where it listens) is no setting.  Stays out: what a setting does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def _positive(text: str) -> str:
    return "" if text.isascii() and text.isdigit() and int(text) > 0 else "a positive whole number"


RESERVE_BYTES_MIN = 384 << 20
"""The least reserve that a node takes (`tidemark_node.disk`): a rewrite of tables needs it."""


def _reserve(text: str) -> str:
    enough = not _positive(text) and int(text) >= RESERVE_BYTES_MIN
    return "" if enough else f"a whole number, {RESERVE_BYTES_MIN} at least: a node rewrites tables on a full disk"


FRAME_BYTES_MAX_MIN = 64 << 20
"""The least room for frames that a node takes (`tidemark_node.settings`): half has room for the largest batch."""


def _frames(text: str) -> str:
    enough = not _positive(text) and int(text) >= FRAME_BYTES_MAX_MIN
    return "" if enough else f"a whole number, {FRAME_BYTES_MAX_MIN} at least: half has room for the largest batch"


REPAIR_MEMORY_BYTES_MIN = 1 << 20
"""The least memory for digests of keyspaces that a node takes (`tidemark_node.settings`)."""


def _repair_memory(text: str) -> str:
    enough = not _positive(text) and int(text) >= REPAIR_MEMORY_BYTES_MIN
    return "" if enough else f"a whole number, {REPAIR_MEMORY_BYTES_MIN} at least: with less a node reads ranges again"


def _seconds(text: str) -> str:
    return "" if text.isascii() and text.isdigit() and int(text) <= 3600 else "a whole number of seconds, at most 3600"


SETTINGS: Mapping[str, Callable[[str], str]] = {
    "append-bytes-max": _positive,
    "calls-max": _positive,
    "disk-reserve-bytes": _reserve,
    "frame-bytes-max": _frames,
    "reclaim-bytes": _positive,
    "reclaim-seconds": _seconds,
    "repair-memory-bytes": _repair_memory,
    "streams-max": _positive,
    "subscription-lease-seconds-max": _positive,
    "subscription-names-max": _positive,
    "watches-max": _positive,
}
"""Flags of a node; each with what a value must be, empty for one that is."""


def problem(spec: Mapping[str, Any]) -> str:
    """Return what is wrong with the configuration in a cluster's spec, and where; nothing for nothing."""
    found = {"spec.config": spec.get("config")}
    for index, pool in enumerate(spec.get("nodePools", ())):
        found[f"spec.nodePools[{index}].config"] = pool.get("config")
    for where, config in found.items():
        for key, value in (config or {}).items():
            if key not in SETTINGS:
                return f"{where}: {key!r} is no setting of a node; those are {', '.join(SETTINGS)}"
            if wanted := SETTINGS[key](str(value)):
                return f"{where}: {key} is {value!r}, and must be {wanted}"
    return ""


def arguments(spec: Mapping[str, Any], pool: Mapping[str, Any]) -> list[str]:
    """Return the flags for the nodes of a pool, whose own settings come before those of the cluster."""
    config = {**(spec.get("config") or {}), **(pool.get("config") or {})}
    return [f"--{key}={value}" for key, value in sorted(config.items())]
