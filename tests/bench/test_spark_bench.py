"""spark: Kafka takes part where its jars can be there, each node of it knows the others, and rounds make a ratio."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import kafka_cluster, kafka_jars, spark_read, spark_write
from bench.figures import Outcome

QUERIES = ("tidemark", "ceiling", "small", "empty", "documents", "documents ceiling", "changes")


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a Java, an empty cache and nothing else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    program(tmp_path / "java" / "bin" / "java", "")
    return tmp_path


def figures(seconds: dict[str, list[float]]) -> dict[str, tuple[float, bool | None]]:
    outcome = Outcome("spark", "")
    spark_read.tell(outcome, {name: [0.1, 0.1, 0.1] for name in QUERIES} | seconds, 1_000_000, 1000)
    return {figure.what: (round(figure.value, 3), figure.met) for figure in outcome.figures}


def test_writes_are_held_against_kafka_and_what_spark_costs() -> None:
    outcome = Outcome("spark-write", "")
    seconds = {"tidemark": [5.0, 4.0, 8.0], "keyed": [10.0] * 3, "dropped": [1.0] * 3, "kafka": [10.0, 4.0, 4.0]}
    spark_write.tell(outcome, seconds, 1_000_000)
    found = {figure.what: (round(figure.value, 3), figure.met) for figure in outcome.figures}
    assert found == {
        "rows written": (200_000, True), "rows written, with keys": (100_000, None), "part of the ceiling": (20, None),
        "Spark's Kafka sink": (250_000, None), "ratio to Spark's Kafka sink": (1.0, True)}


def test_without_java_or_maven_a_sentence_says_why(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "put Maven on PATH" in str(kafka_jars.prepare(lambda text: None))
    monkeypatch.delenv("JAVA_HOME")
    assert "put Java 17 or newer on PATH" in str(kafka_jars.prepare(lambda text: None))


def test_maven_fetches_once(place: Path) -> None:
    maven = program(
        place / "bin" / "mvn", "import pathlib, sys\n"
        "place = pathlib.Path(sys.argv[-1].removeprefix('-DoutputDirectory='))\n"
        "place.mkdir()\n(place / f'{sys.argv[sys.argv.index(\"--activate-profiles\") + 1]}.jar').touch()")
    found = kafka_jars.prepare(lambda text: None)
    assert isinstance(found, kafka_jars.Jars)
    assert [path.name for path in found.server.iterdir()] == ["server.jar"]
    assert [path.name for path in found.connector.iterdir()] == ["connector.jar"]
    maven.unlink()
    assert kafka_jars.prepare(lambda text: None) == found


def test_what_maven_says_is_the_reason_and_no_jars_remain(place: Path) -> None:
    program(
        place / "bin" / "mvn", "import pathlib, sys\n"
        "pathlib.Path(sys.argv[-1].removeprefix('-DoutputDirectory=')).mkdir()\nsys.exit('[ERROR] no network')")
    assert "[ERROR] no network" in str(kafka_jars.prepare(lambda text: None))
    assert not list(kafka_jars.cache_directory().iterdir())


def test_the_pom_pins_one_version_of_each() -> None:
    for name in ("kafka", "connector"):
        assert kafka_jars.version(name).count(".") == 2


def test_nodes_are_formatted_and_know_each_other(tmp_path: Path) -> None:
    java = program(
        tmp_path / "java", "import pathlib, re, socket, sys\nfile = pathlib.Path(sys.argv[-1])\n"
        "if 'kafka.tools.StorageTool' in sys.argv: file.with_suffix('.formatted').touch(); sys.exit()\n"
        "port = re.search(r'advertised.listeners=PLAINTEXT://127.0.0.1:(\\d+)', file.read_text())[1]\n"
        "server = socket.create_server(('127.0.0.1', int(port)))\nwhile True: server.accept()")
    jars = kafka_jars.Jars(str(java), tmp_path, tmp_path)
    with kafka_cluster.running(jars, tmp_path, partitions=4) as brokers:
        assert len(set(brokers.split(","))) == 3
    files = [path.read_text().splitlines() for path in sorted(tmp_path.glob("*.properties"))]
    assert len(files) == len(list(tmp_path.glob("*.formatted"))) == 3
    told = [dict(line.split("=", 1) for line in file if line) for file in files]
    assert [each["node.id"] for each in told] == ["1", "2", "3"]
    assert len({each["controller.quorum.voters"] for each in told}) == 1
    assert len({each["log.dirs"] for each in told}) == 3
    assert {(each["num.partitions"], each["default.replication.factor"]) for each in told} == {("4", "3")}


@pytest.mark.parametrize(("kafka", "ratio", "met"), [([2.0, 0.5, 1.5], 2, True), ([2.0, 0.1, 1.2], 1.5, False)])
def test_kafka_is_held_against_round_by_round(kafka: list[float], ratio: float, met: bool) -> None:
    found = figures({"tidemark": [1.0, 0.2, 0.8], "kafka": kafka})
    assert found["ratio to Spark's Kafka source"] == (ratio, met)
    assert found["Spark's Kafka source"][1] is None


def test_without_kafka_the_other_figures_remain() -> None:
    found = figures({"tidemark": [1.0, 1.0, 1.0], "ceiling": [0.5, 0.5, 0.5]})
    assert not [what for what in found if "Kafka" in what]
    assert found["part of the ceiling"] == (50, False)
    assert found["documents read"] == (10_000, None)
