"""The groups in which tests run: the tests of a group run one after another in one process, the longest group first.

A group is a file; in the files of `EACH_ALONE` each test is one, and each folder of `AS_ONE` is one.
`durations.json` says how long each group took.
Stays out: measuring that (`durations`), and which tests start servers (`servers`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
EACH_ALONE = ("tests/kube/", "tests/sim/test_mutants.py")
"""Their tests are long and share only what every process has: two processes may divide them."""
AS_ONE = ("tests/cli/",)
"""Their tests share servers: two processes would start them twice."""
TOGETHER = ("tests/kube/test_definitions.py", "tests/kube/test_pod_parts.py", "tests/kube/test_binaries.py")
"""Files below `EACH_ALONE` whose tests are short."""


def group_of(test: str) -> str:
    """Return the group of a test, which is named by its node id below the root of the repository."""
    if test.startswith(EACH_ALONE) and not test.startswith(TOGETHER):
        return test
    file = test.partition("::")[0]
    return next((folder for folder in AS_ONE if test.startswith(folder)), file)


def measured() -> Mapping[str, float]:
    """Return the seconds that each group took when the durations were written."""
    groups: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))["groups"]
    return groups


def arranged(items: Sequence[pytest.Item], took: Mapping[str, float]) -> list[pytest.Item]:
    """Return the tests with the longest group in front, each marked with its group for `--dist=loadgroup`.

    A group that was never measured begins before all others: a long one that began last would run alone.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(group_of(item.nodeid), []).append(item)
    ordered = sorted(groups, key=lambda group: -took.get(group, float("inf")))
    for group in ordered:
        if group != groups[group][0].nodeid:
            for item in groups[group]:
                item.add_marker(pytest.mark.xdist_group(group.removeprefix("tests/").removesuffix(".py").removesuffix("/")))
    return [item for group in ordered for item in groups[group]]
