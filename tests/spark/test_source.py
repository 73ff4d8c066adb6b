"""The source without a session: what its import loads, and which PySpark it wants."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_tidemark import DefaultSource
from pyspark_tidemark.source import NotServed, UnsupportedPySpark

ROWS = StructType([StructField("value", BinaryType())])
PROGRAM = """
import json, sys, threading
import pyspark.sql.datasource, pyspark.sql.types
before, threads = set(sys.modules), threading.active_count()
import pyspark_tidemark
print(json.dumps([sorted(set(sys.modules) - before), threading.active_count() - threads, sorted(sys.modules)]))
"""


def test_p1_importing_the_package_loads_pyspark_and_nothing_of_tidemark_beside_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    loaded, threads, everything = json.loads(done.stdout)
    modules = (
        "source", "connecting", "checkpoints", "filters", "pin_lease", "options", "schema", "changes",
        "changes.position", "changes.reader", "changes.tasks", "documents", "documents.reader", "documents.tasks",
        "keyspaces", "keyspaces.reader", "keyspaces.tasks",
        "log", "log.reader", "log.tasks", "log.planning", "log.offsets")
    ours = {"pyspark_tidemark", *(f"pyspark_tidemark.{name}" for name in modules)}
    assert {name for name in loaded if "tidemark" in name} == ours
    roots = {name.partition(".")[0] for name in everything}
    assert not roots & {"grpc", "google", "pyarrow", "rocksdict", "tidemark", "tidemark_node", "tidemark_core"}
    assert threads == 0 and done.stderr == ""


@pytest.mark.parametrize("version", ["4.0.0", "4.1.4", "3.5.7", "4.1.0.dev3"])
def test_p2_an_older_pyspark_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    with pytest.raises(UnsupportedPySpark) as refused:
        DefaultSource({"group": "orders"})
    assert str(refused.value) == (
        f"Tidemark's Spark source needs PySpark 4.2 or newer, and this is {version}: pip install 'pyspark>=4.2'.")


@pytest.mark.parametrize("version", ["4.2.0", "4.3.1", "4.10.0", "5.0.0rc1", "5.0.0.dev1"])
def test_p2_pyspark_of_4_2_and_newer_is_taken(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    assert DefaultSource({"group": "orders"}).schema().names[0] == "group"


def test_spark_finds_the_source_by_its_name_and_pickles_it_by_reference() -> None:
    assert DefaultSource.name() == "tidemark"
    assert pickle.loads(pickle.dumps(DefaultSource)) is DefaultSource


def test_what_is_not_served_says_so() -> None:
    source = DefaultSource({"group": "orders", "mode": "documents"})
    with pytest.raises(NotServed, match=r"has no stream: read it with spark\.read, or follow it with mode=changes"):
        source.streamReader(source.schema())
    for mode in ("documents", "changes", "keyspace"):
        source = DefaultSource({"keyspace" if mode == "keyspace" else "group": "orders", "mode": mode})
        for make in (source.writer, source.streamWriter):
            with pytest.raises(NotServed, match="This release writes to logs alone"):
                make(ROWS, overwrite=False)


@pytest.mark.parametrize(("overwrite", "said"), [("writer", r"mode\('append'\)"), ("streamWriter", "outputMode")])
def test_p17_a_log_is_never_overwritten(overwrite: str, said: str) -> None:
    with pytest.raises(NotServed, match=f"appended to and never overwritten: use {said}"):
        getattr(DefaultSource({"group": "orders"}), overwrite)(ROWS, overwrite=True)
