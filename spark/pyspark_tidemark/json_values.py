"""Values as JSON objects: a whole column is parsed at once into a struct, and a value that does not fit is named.

Fields that the struct does not name are passed over.  Fields that a value lacks are null, and so are the value `null`
and a row without a value.
Stays out: which type a query may ask for (schema).
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

_WRAPPED = "v"
_BLOCK_MIN, _BLOCK_SLACK = 1 << 20, 64


class NotJson(ValueError):
    """A value is not JSON, or not of the type; `row` is its place in the column."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


class JsonValues:
    """Parses columns into one type, which is a struct."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        self._options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([pa.field(_WRAPPED, _zoneless(kind))]), unexpected_field_behavior="ignore",
            newlines_in_values=True)

    def __call__(self, values: pa.BinaryArray) -> pa.StructArray:
        """Return a binary column as structs.  Raises NotJson naming the first value that does not fit."""
        if not len(values):
            return pa.nulls(0, self._kind)
        try:
            return self._parsed(values)
        except (pa.ArrowException, ValueError) as error:
            first = self._first_wrong(values)
            if first is None:
                raise
            raise NotJson(first, _plain(error)) from None

    def _parsed(self, values: pa.BinaryArray) -> pa.StructArray:
        if values.null_count:
            values = values.fill_null(b"null")
        # Wrapped, each value is at least one object or an error, so as many objects as values are one of each.
        lines = pc.binary_join_element_wise(b'{"v":', values, b"}\n", b"")
        text = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), b"")[0].as_buffer()
        read = pyarrow.json.ReadOptions(use_threads=False, block_size=max(_BLOCK_MIN, text.size + _BLOCK_SLACK))
        table = pyarrow.json.read_json(pa.BufferReader(text), read, self._options)
        if table.num_rows != len(values):
            raise ValueError(f"{len(values)} values are {table.num_rows} objects")
        column = table.column(_WRAPPED).combine_chunks()
        return column if column.type == self._kind else column.cast(self._kind)

    def _first_wrong(self, values: pa.BinaryArray) -> int | None:
        """Return the place of the first value that cannot be parsed, found by halves."""
        low, high = 0, len(values)      # the first wrong one lies in [low, high)
        if self._fits(values):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(values[low:middle]) else (low, middle)
        return low

    def _fits(self, values: pa.BinaryArray) -> bool:
        try:
            self._parsed(values)
        except (pa.ArrowException, ValueError):
            return False
        return True


def _zoneless(kind: pa.DataType) -> pa.DataType:
    """Return a type with timestamps that have no zone: Arrow's parser makes UTC of a text with one."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _zoneless(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_zoneless(kind.value_type))
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


def _plain(error: Exception) -> str:
    """Return Arrow's words without the row, which counts wrapped lines of a part."""
    words = str(error).removeprefix("JSON parse error: ").replace("Column(/v", "Column(value")
    return re.sub(r",? ?in row \d+$", "", words).strip()
