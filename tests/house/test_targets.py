"""The target that runs a test: the table of `make test-full`, and the markers that it gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.run import targets
from tests.run.targets import Row, is_full, table

REPOSITORY = Path(__file__).parents[2]
FOLDERS = sorted({str(Path(file).parent) for file in table()})


def names(file: str) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", (REPOSITORY / file).read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("file", table())
def test_each_name_of_the_table_exists(file: str) -> None:
    assert names(file)
    for kept in table()[file].but:
        name, bracket, parameter = kept.partition("[")
        assert name in names(file)
        assert not bracket or f'"{parameter.rstrip("]")}"' in (REPOSITORY / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("file", table())
def test_what_holds_a_row_exists(file: str) -> None:
    held_by = table()[file].held_by
    assert held_by
    for path in re.findall(r"tests/[\w/.]+\w", held_by):
        assert (REPOSITORY / path).exists(), path
        assert path not in table() or table()[path].but, f"{path} waits for make test-full itself"


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_room_keeps_a_test(folder: str) -> None:
    files = [str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / folder).glob("test_*.py")]
    assert any(names(file) and (file not in table() or table()[file].but) for file in files)


def test_a_row_leaves_a_file_to_the_full_run_but_for_what_it_keeps() -> None:
    rows = {"tests/a.py": Row("x", ("test_kept", "test_some[one]")), "tests/b.py": Row("x")}
    left = {test: is_full(test, rows, has_servers=True) for test in (
        "tests/a.py::test_new", "tests/a.py::test_kept", "tests/a.py::test_kept[1]", "tests/a.py::test_some[one]",
        "tests/a.py::test_some[two]", "tests/b.py::test_any", "tests/c.py::test_any")}
    assert list(left.values()) == [True, False, False, False, True, True, False]


class Item:
    def __init__(self, nodeid: str, *markers: str) -> None:
        self.nodeid, self.markers = nodeid, list(markers)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.markers.append(mark.name)


def test_tests_with_servers_and_slow_ones_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "table", lambda: {"tests/a.py": Row("x", slow=True), "tests/c.py": Row("x")})
    monkeypatch.setattr(targets, "slow", lambda: frozenset({f"tests/{name}.py::test_long" for name in "abc"}))
    items = [Item("tests/a.py::test_served", "servers"), Item("tests/b.py::test_served", "servers"),
             Item("tests/a.py::test_long"), Item("tests/b.py::test_long"), Item("tests/c.py::test_long"),
             Item("tests/a.py::test_short")]
    for item in items:
        targets.mark(item)  # type: ignore[arg-type]
    assert [item.markers for item in items] == [
        ["servers", "full"], ["servers"], ["slow", "full"], ["slow"], ["slow"], []]
