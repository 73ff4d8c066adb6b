"""A fake cluster, and a real Spark session for the tests of a file, on two cores, whose JVM ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from tests.fake_in_a_thread import FakeInAThread
from tests.waiting import PATIENCE_S

LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds: the quick compiler, and no threads that collect garbage."""


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    """Two shards on three nodes; the first offset of each is the mark of its election."""
    started = FakeInAThread(shards=2, nodes=3)
    yield started
    started.stop()


def _started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start the JVM as PySpark does, without running Python in a fork of this process, in which gRPC has threads."""
    options.pop("preexec_fn", None)     # it only keeps Ctrl-C from the JVM, and so does a session of its own
    return subprocess.Popen(command, start_new_session=True, **options)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder: Path = tmp_path_factory.mktemp("spark")
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING.format(log=folder / "spark.log"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(java_gateway, "Popen", _started)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
        made = (
            SparkSession.builder.master("local[2,3]")      # two tasks at once, each up to three times
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.local.dir", str(folder))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.driver.extraJavaOptions", f"{JVM} -Dlog4j2.configurationFile={logging.as_uri()}")
            .getOrCreate()
        )
        try:
            yield made
        finally:
            made.stop()
            _end_the_jvm()


def _end_the_jvm() -> None:
    """Let the JVM end, which PySpark keeps for the next session until Python ends."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()      # the JVM ends when its standard input does
    gateway.proc.wait(PATIENCE_S)
    SparkContext._gateway = SparkContext._jvm = None
    os.environ.pop("PYSPARK_GATEWAY_PORT", None)
