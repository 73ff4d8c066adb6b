"""The data source as Spark sees it: a name, a schema, and the reader of a mode.

Stays out: what options mean (options), columns (schema), how rows are read (the readers).
"""

from __future__ import annotations

import re
from typing import NoReturn

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .options import Options
from .schema import check_schema, default_schema

PYSPARK_OLDEST = (4, 2)


class UnsupportedPySpark(RuntimeError):
    """The installed PySpark lacks what this source needs."""


class NotServed(NotImplementedError):
    """This release does not read or write what the query asks for."""


class TidemarkSource(DataSource):
    """Log groups of a Tidemark cluster.  Spark pickles it by reference and constructs it in its Python workers."""

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
        return default_schema(options.mode, include_headers=options.include_headers)

    def reader(self, schema: StructType) -> NoReturn:
        """Refuse a batch query, after its options and its schema are checked.  Raises InvalidOption, NotServed."""
        raise self._not_served(schema, "spark.read")

    def streamReader(self, schema: StructType) -> NoReturn:
        """Refuse a streaming query likewise.  Raises InvalidOption, NotServed."""
        raise self._not_served(schema, "spark.readStream")

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise NotServed("This release of Tidemark has no Spark sink; append with the Python client.")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        self.writer(schema, overwrite)

    def _not_served(self, schema: StructType, what: str) -> NotServed:
        options = Options.of(self.options)
        check_schema(schema, options.mode)
        return NotServed(f"This release does not serve mode={options.mode} to {what} yet.")


def check_pyspark(version: str) -> None:
    """Raise UnsupportedPySpark for a version before 4.2, whose streaming readers know no limits (P2)."""
    oldest = ".".join(map(str, PYSPARK_OLDEST))
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < PYSPARK_OLDEST:
        raise UnsupportedPySpark(
            f"Tidemark's Spark source needs PySpark {oldest} or newer, and this is {version}: "
            f"pip install 'pyspark>={oldest}'.")
