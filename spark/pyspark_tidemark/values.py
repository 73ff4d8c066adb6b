"""The column value of a query: bytes as they were written, or structs parsed out of them.

Stays out: how JSON is parsed (json_values), which rows there are (the rows of each mode).
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from .json_values import JsonValues, NotJson
from .schema import VALUE

KEY_SHOWN_BYTES = 60


def shown(key: bytes) -> str:
    """Return a key as an error shows it."""
    return repr(key[:KEY_SHOWN_BYTES])


class UnreadableRows(ValueError):
    """Stored values cannot become rows; the message names the group or keyspace, and where they lie."""


class Values:
    """Makes the column that a schema asks for."""

    def __init__(self, owner: str, schema: pa.Schema) -> None:
        """Make one of a schema; `owner` is the group or keyspace as errors name it."""
        self._owner = owner
        kind = schema.field(VALUE).type if VALUE in schema.names else None
        self._parse = JsonValues(kind) if kind is not None and pa.types.is_struct(kind) else None

    def of(self, stored: pa.BinaryArray, place: Callable[[int], str]) -> pa.Array:
        """Return the column of stored values.

        Raises UnreadableRows for the first value that does not fit; `place` says where it lies, by its number.
        """
        if self._parse is None:
            return stored
        try:
            return self._parse(stored)
        except NotJson as error:
            raise UnreadableRows(
                f"the value {place(error.row)} of {self._owner} does not fit the schema: {error}. "
                "Read it with valueFormat=binary and parse it with from_json, which makes it null.") from None
