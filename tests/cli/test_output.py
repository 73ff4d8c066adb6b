"""Tables in a pipe: one row, one line."""

from __future__ import annotations

import pytest
from tidemark_cli.output import Form, table, write

CELL = "a message of many words that no terminal of eighty columns shows in one line " * 4


def test_no_cell_is_folded_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    write(Form.TABLE, {}, lambda: table(["NAME", "MESSAGE"], [["one", CELL], ["two", "x" * 500]]))
    _header, one, two = capsys.readouterr().out.splitlines()
    assert one.rstrip().split(None, 1) == ["one", CELL.rstrip()]
    assert two.split() == ["two", "x" * 500]
