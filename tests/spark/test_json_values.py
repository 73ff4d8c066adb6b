"""Columns of JSON texts as structs: each value is one row, and the first that does not fit is named."""

from __future__ import annotations

import datetime
import json
import random

import pyarrow as pa
import pytest
from pyspark_tidemark.json_values import JsonValues, NotJson

from tests.seeds import every_seed

KIND = pa.struct([
    ("name", pa.string()), ("size", pa.int64()), ("tags", pa.list_(pa.string())),
    ("inner", pa.struct([("ok", pa.bool_()), ("at", pa.timestamp("us", tz="UTC")), ("half", pa.float64())]))])


def parsed(*values: bytes | None) -> list[object]:
    column = JsonValues(KIND)(pa.array(values, pa.binary()))
    assert column.type == KIND
    return list(column.to_pylist())


def row(**fields: object) -> dict[str, object]:
    return {"name": None, "size": None, "tags": None, "inner": None, **fields}


def test_fields_are_read_by_name_and_others_are_passed_over() -> None:
    value = b'{"more": [1, {"x": 2}], "size": 7, "inner": {"half": 0.5, "ok": true, "at": "2026-01-31T12:00:00Z"}, ' \
            b'"name": "\\u00e4", "tags": ["a", null]}'
    at = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    assert parsed(value, b"{}", b"null", None) == [
        row(name="ä", size=7, tags=["a", None], inner={"ok": True, "at": at, "half": 0.5}), row(), None, None]
    assert parsed() == []


def test_a_value_may_have_line_breaks_and_spaces() -> None:
    assert parsed(b'\n {"name":\r\n "a"}\n', b'{"name": "b\\n"}') == [row(name="a"), row(name="b\n")]


@pytest.mark.parametrize("wrong", [
    b"", b" ", b"{", b"}", b'{"name": "a"} {"name": "b"}', b'{"name": "a"}} {"v":{"name": "b"}', b"[]", b"5", b'"text"',
    b'{"name": 5}', b'{"size": "5"}', b'{"size": 1.5}', b'{"size": 99999999999999999999}', b'{"name": "a\nb"}', b"\xff",
    b'{"name": "a', b'{"tags": {}}', b'{"inner": []}', b"nul",
])
@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_value_that_does_not_fit_is_named_by_its_place(wrong: bytes, at: int) -> None:
    values = [b'{"name": "a"}'] * 8
    values[at] = wrong
    with pytest.raises(NotJson) as refused:
        parsed(*values)
    assert refused.value.row == at
    assert str(refused.value) and "(/v" not in str(refused.value)


@every_seed(60)
def test_rows_equal_what_python_parses(seed: int) -> None:
    dice = random.Random(seed)

    def some() -> dict[str, object] | None:
        fields = {
            "name": dice.choice([None, "", "x" * dice.randrange(50), "\n\"\\"]),
            "size": dice.choice([None, 0, -5, 2**62]),
            "tags": dice.choice([None, [], ["a"], [None, "b"]]),
            "inner": dice.choice([None, {"ok": True, "at": None, "half": -0.25}])}
        return dice.choice([fields, None])

    rows = [some() for _ in range(dice.randint(1, 300))]
    indent = dice.choice([None, 1])
    assert parsed(*(json.dumps(each, indent=indent).encode() for each in rows)) == rows
