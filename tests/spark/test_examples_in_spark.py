"""The programs in `examples/spark` give what plain Python finds in the same packages, over a fake cluster."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tidemark.sync
from pyspark.sql import SparkSession

from tests.fake_in_a_thread import FakeInAThread

EXAMPLES = Path(__file__).parents[2] / "examples"
RELEASES = ("bookworm", "trixie")
"""Those that are followed: each run of a query takes seconds."""
GROUP = "debian"


def program(name: str) -> ModuleType:
    """Import an example by its path: a process for each would start a JVM for each."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / "spark" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOAD, DEPENDENCIES, CHURN, INDEX = (
    program(name) for name in ("load_release", "dependencies_by_section", "package_churn", "index_dependents"))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """Return all records of every twelfth package, which the loader takes for the whole file."""
    with gzip.open(LOAD.DATA, "rt", encoding="utf-8") as lines:
        every = [json.loads(line) for line in lines]
    keys = set(sorted({record["key"] for record in every})[::12])
    kept = [record for record in every if record["key"] in keys and record["release"] in RELEASES]
    file = tmp_path_factory.mktemp("data") / "packages.ndjson.gz"
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LOAD, "DATA", file)
        yield kept


@pytest.fixture
def group(fake: FakeInAThread) -> str:
    async def add() -> None:
        fake.cluster.add_documents(GROUP, 2)

    fake.call(add())
    return GROUP


def fail(*_: object) -> None:
    raise OSError("the disk is full")


def churn(records: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    versions: dict[str, str] = {}
    counts = {release: dict.fromkeys(("added", "upgraded", "removed"), 0) for release in RELEASES}
    for record in records:
        key, count = record["key"], counts[record["release"]]
        if record["op"] == "delete":
            count["removed"] += 1
            del versions[key]
        else:
            new = record["doc"]["version"]
            count["added"] += key not in versions
            count["upgraded"] += versions.get(key, new) != new
            versions[key] = new
    return counts


def test_dependencies_by_section(
    spark: SparkSession, fake: FakeInAThread, group: str, records: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    sections: dict[str, list[set[str]]] = defaultdict(list)
    for record in records:
        if record["release"] == "bookworm":
            names = {re.split("[ :|]", entry)[0] for entry in record["doc"]["depends"]}
            sections[record["doc"]["section"]].append(names)
    wanted = []
    for section, packages in sections.items():
        dependents = Counter(name for names in packages for name in names)
        count, first = max((count, name) for name, count in dependents.items())
        sizes = [len(names) for names in packages]
        wanted.append((section, len(sizes), round(sum(sizes) / len(sizes), 2), max(sizes), first, count))

    LOAD.main(fake.address, group, "bookworm")
    DEPENDENCIES.main(fake.address, group)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert table[0] == ["section", "packages", "average", "most", "most_depended_on", "dependents"]
    assert table[1:] == [[str(cell) for cell in row] for row in sorted(wanted, key=lambda row: (-row[1], row[0]))]
    assert len(wanted) == 3


def test_package_churn_counts_each_release_once(
    spark: SparkSession, fake: FakeInAThread, group: str, records: list[dict[str, Any]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = churn(records)
    assert all(wanted["trixie"].values())
    seen: dict[str, dict[str, int]] = {}
    for release in RELEASES:
        LOAD.main(fake.address, group, release)
        seen[release] = wanted[release]
        assert CHURN.follow(spark, fake.address, group, tmp_path) == seen

    # Nothing new: no micro-batch.
    commits = tmp_path / "checkpoint" / "commits"
    assert CHURN.follow(spark, fake.address, group, tmp_path) == wanted
    assert {file.name for file in commits.glob("[0-9]*")} == {"0", "1"}

    # The run before ended between the table and Spark's commit: Spark repeats the micro-batch.
    for file in (commits / "1", commits / ".1.crc"):
        file.unlink()
    capsys.readouterr()
    CHURN.main(fake.address, group, str(tmp_path))
    assert (commits / "1").exists()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["release", "added", "upgraded", "removed"],
        *([release, *map(str, wanted[release].values())] for release in RELEASES)]
    picture = (tmp_path / "churn.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n") and len(picture) > 5_000


def test_package_churn_compares_the_newest_versions_of_two_cuts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(seqno: int, key: str, version: str | None = None) -> tuple[Any, ...]:
        return seqno, key.encode(), (version, "trixie") if version else None

    table = CHURN.Table(tmp_path)
    first = [change(1, "kept", "1"), change(2, "gone", "1"), change(3, "same", "1")]
    second = [
        change(9, "kept", "3"), change(5, "kept", "2"),           # two versions, the newest first
        change(6, "gone"), change(7, "same", "1"),
        change(8, "never seen"), change(4, "never seen", "1")]
    for number, rows in enumerate((first, second, [change(10, "kept")])):
        changes, before = spark.createDataFrame(rows, CHURN.SCHEMA), table.counts()
        if number == 1:
            with monkeypatch.context() as patch, pytest.raises(OSError, match="the disk is full"):
                patch.setattr(Path, "rename", fail)
                table.apply(changes, number)
            assert table.counts() == before
        table.apply(changes, number)
        counts = table.counts()
        table.apply(changes, number)        # Spark repeats a micro-batch whose commit it did not store
        assert table.counts() == counts != before
    assert counts == {"trixie": {"added": 3, "upgraded": 1, "removed": 2}}
    assert [each.name for each in tmp_path.iterdir()] == ["cut-2"]
    (left,) = spark.read.parquet(str(tmp_path / "cut-2" / "documents")).collect()
    assert (bytes(left.key), left.version) == (b"same", "1")


def test_an_index_of_dependents_has_the_same_records_in_the_same_order_when_a_batch_is_repeated(
    spark: SparkSession
) -> None:
    """As P24 has it: what was written again meanwhile comes last and from a pin, and once."""
    def put(seqno: int, key: str, *depends: str) -> tuple[Any, ...]:
        return seqno, "PUT", key.encode(), ("1", "trixie", list(depends))

    kept = [put(seqno, f"p{seqno}", "libc6 (>= 2)", "libc6 (<< 3)", "mta | exim4") for seqno in range(10, 50)]
    first = [put(1, "p10", "old"), *kept, put(60, "gone", "old"), (61, "DELETE", b"gone", None)]
    again = [*kept[20:], *reversed(kept[:20])]
    shown = [
        INDEX.records(spark.createDataFrame(rows, INDEX.SCHEMA)).rdd.glom().collect() for rows in (first, again)]
    assert shown[0] == shown[1] and len(shown[0]) == INDEX.PARTS
    assert all(part == sorted(part) for part in shown[0]), "an order of its own, not one that a plan happens to give"
    found = [(row.key, json.loads(row.value)["package"]) for part in shown[0] for row in part]
    assert sorted(found) == sorted(
        (name, row[2].decode()) for row in kept for name in ("libc6", "mta"))


@pytest.mark.full
def test_an_index_of_dependents_has_each_change_once_though_a_batch_is_repeated_behind_newer_changes(
    spark: SparkSession, fake: FakeInAThread, group: str, records: list[dict[str, Any]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = Counter(
        (name, record["key"], record["doc"]["version"], record["release"])
        for record in records if record["op"] == "put"
        for name in {re.split("[ :|]", entry)[0] for entry in record["doc"]["depends"]})

    def indexed() -> Counter[tuple[str, ...]]:
        with tidemark.sync.connect(fake.address) as client:
            found = client.read("orders")
            return Counter((record.key.decode(), *json.loads(record.value).values()) for record in found)

    for release in RELEASES:
        LOAD.main(fake.address, group, release)
        if release == RELEASES[-1]:     # the run before ended between its write and Spark's commit
            for file in ("0", ".0.crc"):
                (tmp_path / "checkpoint" / "commits" / file).unlink()
        capsys.readouterr()
        INDEX.main(fake.address, group, "orders", str(tmp_path))
        assert indexed() == Counter({key: count for key, count in wanted.items() if key[3] <= release})
    names = Counter(name for name, *_ in wanted).most_common()
    first = min((-count, name) for name, count in names)
    shown = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in shown[1]] == [first[1], str(-first[0])]
    assert {file.name for file in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")} == {"0", "1"}
