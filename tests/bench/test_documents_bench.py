"""documents: the bare store takes whole batches, and the figures compare each round with its own peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rocksdict import Rdict
from tidemark_core.documents.rows import BYSEQ, DOCS, EFFECTS, decode_row
from tidemark_node.database import open_database
from tidemark_node.families import FAMILIES

from bench.documents import ALONE, OVER, OVER_PINNED, PINNED, Found, tell
from bench.figures import Outcome
from bench.workers import document_store


def rows_of(family: Rdict) -> list[tuple[bytes, bytes]]:
    return list(family.items())


def test_a_bare_store_holds_the_rows_of_what_it_counts(tmp_path: Path) -> None:
    told = document_store.write(tmp_path, batch_records=10, value_bytes=100, group_bytes=1, seconds=0)
    assert told["syncs"] >= 1
    assert told["documents"] == 10 * told["syncs"]
    database, later = open_database(tmp_path, FAMILIES)
    assert not later
    documents = rows_of(database.get_column_family(DOCS))
    assert told["documents"] <= len(documents) == len(rows_of(database.get_column_family(BYSEQ)))
    assert len(documents) == 10 * len(rows_of(database.get_column_family(EFFECTS)))
    assert {len(decode_row(value).value) for _, value in documents} == {100}


def test_a_group_of_a_bare_store_is_as_large_as_those_of_the_nodes(tmp_path: Path) -> None:
    told = document_store.write(tmp_path, batch_records=10, value_bytes=100, group_bytes=20 << 10, seconds=0)
    assert 20 <= told["group_kib"] < 25
    assert told["documents"] > 10 * told["syncs"]


def rate(per_second: float, **more: Any) -> dict[str, Any]:
    return {"per_second": per_second, "times_ms": [1.0], "cpu_seconds": 1.0, "documents": 1000, **more}


def found() -> Found:
    """Three rounds on a machine that becomes slower all the time."""
    made = Found()
    made.puts = [rate(each, node_cpu_seconds=2.0) for each in (30_000, 21_000, 9_000)]
    made.stores = [rate(each) for each in (60_000, 60_000, 18_000)]
    made.etcd = [rate(each) for each in (20_000, 21_000, 18_000)]
    made.gets = [[rate(900, level="leader", tasks=1), rate(8_000, level="leader", tasks=64)] for _ in range(3)]
    made.scans = [{"documents": 1000, "value_bytes": 10**6, "seconds": 0.5}]
    for name, each in ((ALONE, 100), (PINNED, 98), (OVER, 80), (OVER_PINNED, 40)):
        made.pins[name] = [rate(each, kept_bytes=1_100_000 if name == OVER_PINNED else 0)]
    return made


def test_each_round_is_compared_with_its_own_peers() -> None:
    outcome = Outcome("documents", "")
    tell(outcome, found(), 10)
    figures = {figure.what: (round(figure.value, 3), figure.met) for figure in outcome.figures}
    assert figures["puts over 10 s"] == (21_000, True)
    assert figures["puts, part of the ceiling"] == (50, True)
    assert figures["puts, ratio to etcd"] == (1, True)
    assert figures["get (leader), 64 at a time"] == (8_000, True)
    assert figures["get (leader), idle, p50"] == (1, True)
    assert figures["scan of all documents"] == (2_000, None)
    assert figures["puts of new keys under a pin, part of those without"] == (98, True)
    assert figures["overwriting puts under a pin, part of those without"] == (50, None)
    assert figures["bytes that a pin keeps while nothing is overwritten"] == (0, True)
    assert figures["bytes that a pin keeps for each of these"] == (1_100, None)


def test_without_etcd_the_other_figures_remain() -> None:
    outcome, without = Outcome("documents", ""), found()
    without.etcd = []
    tell(outcome, without, 10)
    assert not [figure for figure in outcome.figures if "etcd" in figure.what]
    assert [figure for figure in outcome.figures if figure.what == "puts, part of the ceiling"]
