"""The data source as Spark sees it: a name, a schema, and the reader of a mode.

Stays out: what options mean (options), columns (schema), how rows are read (the readers).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .changes.reader import ChangesReader, FilteredChangesReader
from .documents.reader import DocumentsReader, FilteredDocumentsReader
from .filters import pushed_down
from .keyspaces.reader import FilteredKeyspaceReader, KeyspaceReader
from .log.reader import FilteredLogReader, LogReader
from .options import OF_STREAM_WRITES, Options, check_use, check_write
from .schema import Mode, check_schema, check_written, default_schema

PYSPARK_OLDEST = (4, 2)

READERS: Mapping[Mode, tuple[Callable[[Options, StructType], DataSourceReader], ...]] = {
    Mode.LOG: (LogReader, FilteredLogReader),
    Mode.DOCUMENTS: (DocumentsReader, FilteredDocumentsReader),
    Mode.CHANGES: (ChangesReader, FilteredChangesReader),
    Mode.KEYSPACE: (KeyspaceReader, FilteredKeyspaceReader),
}
"""Readers of batch queries, without and with filters that Spark pushes down (P3)."""


class UnsupportedPySpark(RuntimeError):
    """The installed PySpark lacks what this source needs."""


class NotServed(RuntimeError):
    """This release does not read or write what the query asks for.

    No NotImplementedError: Spark takes some of those for a method that a source leaves out, and goes on.
    """


class TidemarkSource(DataSource):
    """Log groups and keyspaces of a cluster.  Spark pickles it by reference and constructs it in its Python workers."""

    def __init__(self, options: dict[str, str]) -> None:
        """Keep the options of a query; `schema` and the readers check them.  Raises UnsupportedPySpark (P2)."""
        check_pyspark(pyspark.__version__)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "tidemark"

    def schema(self) -> StructType:
        """Return the columns of a query without a schema of its own.  Raises InvalidOption."""
        options = Options.of(self.options)
        return default_schema(
            options.mode, include_headers=options.include_headers, parses_json=options.parses_json)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query.  Raises InvalidOption, InvalidSchema, NotServed."""
        options = self._checked(schema, streaming=False)
        plain, filtered = READERS[options.mode]
        # Spark 4.2 and 4.3 keep the filters of one query for the next one of the same DataFrame, so a user asks for it.
        return (filtered if options.pushes_down and pushed_down() else plain)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query.  Raises as `reader`."""
        # They import what PySpark has from 4.2 on (P2).
        from .changes.stream import ChangesStreamReader
        from .log.stream import LogStreamReader

        options = self._checked(schema, streaming=True)
        match options.mode:
            case Mode.LOG:
                return LogStreamReader(options, schema)
            case Mode.DOCUMENTS:
                raise NotServed(
                    "mode=documents shows one state and has no stream: read it with spark.read, or follow it with "
                    "mode=changes.")
            case Mode.CHANGES:
                return ChangesStreamReader(options, schema)
            case Mode.KEYSPACE:
                raise NotServed(
                    "Keyspaces have no change stream: read one with spark.read, again where it is to be followed, or "
                    "keep what is to be followed in a group of documents.")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query.  Raises InvalidOption, InvalidSchema, NotServed (P17)."""
        from .sink.writers import LogWriter

        return LogWriter(self._to_write(schema, streaming=False, instead=overwrite and "mode('append')"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query.  Raises as `writer`."""
        from .sink.writers import LogStreamWriter

        return LogStreamWriter(self._to_write(schema, streaming=True, instead=overwrite and "outputMode('append')"))

    def _to_write(self, schema: StructType, *, streaming: bool, instead: str | Literal[False]) -> Options:
        given = {
            name: text for name, text in self.options.items()
            if not (streaming and name.lower() in OF_STREAM_WRITES)}
        options = Options.of(given)
        if options.mode is not Mode.LOG:
            raise NotServed(f"This release writes to logs alone, not with mode={options.mode}; use the Python client.")
        if instead:
            raise NotServed(f"A log is appended to and never overwritten: use {instead}.")
        check_write(given, streaming=streaming)
        check_written(schema)
        return options

    def _checked(self, schema: StructType, *, streaming: bool) -> Options:
        options = Options.of(self.options)
        check_use(self.options, streaming=streaming)
        check_schema(schema, options.mode, parses_json=options.parses_json)
        return options


def check_pyspark(version: str) -> None:
    """Raise UnsupportedPySpark for a version before 4.2, whose streaming readers know no limits (P2)."""
    oldest = ".".join(map(str, PYSPARK_OLDEST))
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < PYSPARK_OLDEST:
        raise UnsupportedPySpark(
            f"Tidemark's Spark source needs PySpark {oldest} or newer, and this is {version}: "
            f"pip install 'pyspark>={oldest}'.")
