"""What tests are made with: waiting, seeds, groups, durations and the marker `servers`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run import durations, groups, servers
from tests.seeds import ONLY, every_seed
from tests.waiting import remains, until, wait_until

REPOSITORY = Path(__file__).parents[2]


# --- waiting


async def test_until_returns_what_it_waited_for_and_names_what_never_came() -> None:
    looks = iter([None, 0, "here"])
    assert await until(lambda: next(looks)) == "here"

    async def late() -> int:
        return 7

    assert await until(late) == 7
    with pytest.raises(AssertionError, match=r"not within 0.01 s: a leader"):
        await until(lambda: False, "a leader", 0.01)
    with pytest.raises(AssertionError, match=r"not within 0.01 s: .*looks == 3"):
        await until(lambda: looks == 3, timeout_s=0.01)


def test_wait_until_does_without_a_loop() -> None:
    looks = iter([None, 0, "here"])
    assert wait_until(lambda: next(looks)) == "here"
    with pytest.raises(AssertionError, match=r"not within 0.01 s: a file"):
        wait_until(lambda: False, "a file", 0.01)


async def test_remains_looks_all_the_time_and_once_more_at_the_end() -> None:
    looks: list[int] = []
    await remains(lambda: looks.append(1) or True, for_s=0.05)
    assert len(looks) > 1
    await remains(lambda: looks.append(1) or True, for_s=0)
    late = iter([True, True, False])
    with pytest.raises(AssertionError, match="no longer true: quiet"):
        await remains(lambda: next(late), "quiet", 10)


# --- seeds


def test_every_seed_is_tried_and_the_one_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ONLY, raising=False)
    tried: list[int] = []

    @every_seed(5)
    def test_of(seed: int) -> None:
        tried.append(seed)
        assert seed != 3, "three"

    with pytest.raises(AssertionError, match=rf"seed 3: .*three.*{ONLY}=3"):
        test_of()
    assert tried == [0, 1, 2, 3]
    monkeypatch.setenv(ONLY, "4")
    test_of()
    assert tried[-1] == 4


async def test_a_coroutine_is_awaited_for_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ONLY, raising=False)
    tried: list[tuple[int, str]] = []

    @every_seed(2)
    async def test_of(seed: int, other: str) -> None:
        tried.append((seed, other))

    await test_of(other="x")
    assert tried == [(0, "x"), (1, "x")]


# --- groups


def test_a_group_is_a_file_or_a_test() -> None:
    assert groups.group_of("tests/core/test_node.py::test_a[b::c]") == "tests/core/test_node.py"
    assert groups.group_of("tests/kube/test_operator.py::test_a[x]") == "tests/kube/test_operator.py::test_a[x]"
    assert groups.group_of("tests/kube/test_definitions.py::test_a") == "tests/kube/test_definitions.py"
    assert groups.group_of("tests/cli/test_demo.py::test_a") == "tests/cli/"
    for place in (*groups.EACH_ALONE, *groups.TOGETHER, *groups.AS_ONE):
        assert (REPOSITORY / place).exists(), place


class Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid
        self.group = ""

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        (self.group,) = mark.args


def test_the_longest_group_begins_and_one_that_was_never_measured_before_it() -> None:
    names = ["tests/a.py::one", "tests/b.py::one", "tests/a.py::two", "tests/c.py::one", "tests/kube/test_x.py::test_y"]
    items = [Item(name) for name in names]
    took = {"tests/a.py": 1.0, "tests/b.py": 2.0, "tests/kube/test_x.py::test_y": 9.0}
    ordered = groups.arranged(items, took)  # type: ignore[arg-type]
    assert [(item.nodeid, item.group) for item in ordered] == [  # type: ignore[attr-defined]
        ("tests/c.py::one", "c"), ("tests/kube/test_x.py::test_y", ""), ("tests/b.py::one", "b"),
        ("tests/a.py::one", "a"), ("tests/a.py::two", "a")]


def test_the_durations_are_written_with_the_longest_in_front() -> None:
    """`make durations` writes them; a new or renamed file needs no entry and begins first."""
    written = json.loads(groups.DURATIONS.read_text(encoding="utf-8"))
    assert list(written["groups"].values()) == sorted(written["groups"].values(), reverse=True)
    assert len(written["groups"]) > 100


UNMEASURED = "tests/house/test_kit.py::test_a_server_is_known_by_its_command_line"
GONE = "tests/gone.py::test_gone"


def test_durations_are_read_from_results(tmp_path: Path) -> None:
    results, target = tmp_path / "results.xml", tmp_path / "durations.json"
    results.write_text(
        '<testsuites><testsuite>'
        '<testcase classname="tests.house.test_kit" name="test_a[x@y]@house/test_kit" time="1.25"/>'
        '<testcase classname="tests.house.test_kit" name="test_b[x@y]" time="0.5"/>'
        '<testcase classname="tests.kube.test_operator" name="test_c" time="2.04"/></testsuite></testsuites>')
    target.write_text(json.dumps({
        "groups": {"tests/core/test_node.py": 3.0, "tests/gone.py": 4.0, "tests/house/test_kit.py": 9.0,
                   "tests/kube/test_operator.py::test_gone": 5.0, "tests/cli/test_demo.py": 6.0, "tests/cli/": 8.0},
        "tests": {"tests/house/test_kit.py::test_old": 7.0, f"{UNMEASURED}[1]": 6.0, f"{GONE}[1]": 2.0}}))
    durations.write([results], target)
    assert json.loads(target.read_text()) == {
        "groups": {
            "tests/cli/": 8.0, "tests/house/test_kit.py": 7.8,
            "tests/core/test_node.py": 3.0, "tests/kube/test_operator.py::test_c": 2.0},
        "tests": {
            f"{UNMEASURED}[1]": 6.0, "tests/kube/test_operator.py::test_c": 2.0,
            "tests/house/test_kit.py::test_a[x@y]": 1.2}}


# --- names of tests


def test_long_and_binary_parameters_are_no_part_of_a_tests_name(pytestconfig: pytest.Config) -> None:
    """pytest-xdist ends a run whose processes name a test differently, such as by the time in a packed content."""
    name = pytestconfig.hook.pytest_make_parametrize_id
    assert name(config=pytestconfig, val=b"\x1f\x8b", argname="content") == "content"
    assert name(config=pytestconfig, val="x" * 101, argname="text") == "text"
    assert name(config=pytestconfig, val="x" * 100, argname="text") is None
    assert name(config=pytestconfig, val=7, argname="number") is None


# --- servers


@pytest.mark.parametrize(("command", "serves"), [
    (["python", "-m", "tidemark_node", "--node", "a"], True),
    (["unshare", "-Urm", "sh", "-c", "x", "python", "-m", "tidemark_operator"], True),
    (["somewhere/bin/etcd", "--name=test"], True),
    (["git", "ls-files"], False),
    (["python", "-m", "tidemark_cli", "read"], False),
    (["python", "-m"], False),
    ([], False),
])
def test_a_server_is_known_by_its_command_line(command: list[str], serves: bool) -> None:
    assert servers.starts_a_server(command) is serves


def test_a_server_without_the_marker_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"test_a_server_without_the_marker_is_refused.* lacks the marker servers"):
        subprocess.Popen([sys.executable, "-m", "tidemark_node"])


def test_the_fixtures_that_start_servers_are_there() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("*.py"))
    for name in servers.FIXTURES:
        assert re.search(rf"@pytest\.fixture[^\n]*\n(async )?def {name}\(", sources), name
