"""Package churn: a streaming query counts the packages that each Debian release adds, upgrades and removes.

    pip install 'tidemarkdb[spark]' matplotlib
    python examples/spark/load_release.py HOST:PORT debian bookworm
    python examples/spark/package_churn.py HOST:PORT debian FOLDER     # both again for trixie, then for sid

Each run reads the changes since the run before and ends. FOLDER holds the query's checkpoint, the newest documents, the
counts, and the plot `churn.png`. They belong together: to begin again, delete the whole folder.
"""

import json
import shutil
import sys
from pathlib import Path

from matplotlib.figure import Figure
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SCHEMA = "seqno bigint, key binary, value struct<version: string, release: string>"
KINDS = ("added", "upgraded", "removed")
Counts = dict[str, dict[str, int]]


class Table:
    """The versions of packages at one cut, and the counts up to it, in a folder `cut-N` behind micro-batch N.

    Spark repeats a micro-batch when it stopped before it stored the commit. One rename makes documents and counts of
    a cut appear together, so a repeated micro-batch finds both or neither.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def number(self) -> int:
        """Return the number of the newest cut, -1 before the first."""
        return max((int(cut.name.removeprefix("cut-")) for cut in self._folder.glob("cut-*")), default=-1)

    def counts(self) -> Counts:
        """Return the counts by release and kind."""
        churn = self._cut(self.number()) / "churn.json"
        return json.loads(churn.read_text(encoding="utf-8")) if churn.exists() else {}

    def apply(self, changes: DataFrame, number: int) -> None:
        """Make the next cut of the newest one and a micro-batch of changes."""
        newest, counts = self.number(), self.counts()
        if number <= newest:
            return
        spark = changes.sparkSession
        before = (
            spark.read.parquet(f"{self._cut(newest)}/documents") if newest >= 0
            else spark.createDataFrame([], "key binary, version string"))

        # A package that changed several times may come in several versions: the highest seqno is the newest.
        last = changes.groupBy("key").agg(f.max_by(f.struct("seqno", "value"), "seqno").alias("last"))
        packages = before.join(last, "key", "full").selectExpr(
            "key", "version as old", "case when last is null then version else last.value.version end as new",
            "last.seqno", "last.value.release").persist()   # the changes are read once, for counts and documents

        # A delete has no value that names its release: it counts for the one that the newest package names.
        found = packages.selectExpr(
            "count_if(old is null and new is not null) as added", "count_if(old <> new) as upgraded",
            "count_if(old is not null and new is null) as removed",
            "max_by(release, seqno) filter (where release is not null) as release").head()
        release = found.release or next(reversed(counts), "unknown")
        counts[release] = {kind: counts.get(release, {}).get(kind, 0) + found[kind] for kind in KINDS}

        partial = self._folder / "partial"
        packages.where("new is not null").selectExpr("key", "new as version").write.parquet(
            f"{partial}/documents", mode="overwrite")
        (partial / "churn.json").write_text(json.dumps(counts), encoding="utf-8")
        partial.rename(self._cut(number))
        packages.unpersist()
        for cut in self._folder.glob("cut-*"):
            if cut != self._cut(number):
                shutil.rmtree(cut)

    def _cut(self, number: int) -> Path:
        return self._folder / f"cut-{number}"


def follow(spark: SparkSession, address: str, group: str, folder: Path) -> Counts:
    """Apply the changes since the run before to the table, and return all counts."""
    table = Table(folder)
    changes = (
        spark.readStream.format("tidemark").option("endpoints", address).option("group", group)
        .option("mode", "changes").option("startingOffsets", "earliest")
        .option("valueFormat", "json").schema(SCHEMA).load())
    query = (
        changes.writeStream.foreachBatch(table.apply).option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True).start())
    query.awaitTermination()
    return table.counts()


def plot(counts: Counts, file: Path) -> None:
    """Draw a bar for each release and kind."""
    figure = Figure(figsize=(7, 4))     # without pyplot, so it needs no display
    axes = figure.subplots()
    for place, kind in enumerate(KINDS):
        bars = axes.bar(
            [number + place * 0.3 for number in range(len(counts))], [count[kind] for count in counts.values()],
            width=0.3, label=kind)
        axes.bar_label(bars)
    axes.set_xticks([number + 0.3 for number in range(len(counts))], list(counts))
    axes.set_ylabel("packages")
    figure.legend(loc="upper center", ncols=len(KINDS))
    figure.savefig(file)


def main(address: str, group: str, folder: str) -> None:
    # Within streaming queries Spark does not adapt its 200 partitions, of which a small table needs few.
    spark = SparkSession.builder.appName("package-churn").config("spark.sql.shuffle.partitions", 4).getOrCreate()
    counts = follow(spark, address, group, Path(folder))
    print(f"{'release':10}" + "".join(f"{kind:>10}" for kind in KINDS))
    for release, count in counts.items():
        print(f"{release:10}" + "".join(f"{count[kind]:>10}" for kind in KINDS))
    plot(counts, Path(folder) / "churn.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
