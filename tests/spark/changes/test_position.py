"""Positions of mode=changes: their stored form, and what lies between two of them."""

from __future__ import annotations

import json

import pytest
from pyspark_tidemark.changes.position import BEGINNING, Place, Position, ShardGone, Stretch, stretches
from pyspark_tidemark.checkpoints import UnreadableCheckpoint

LINEAGE = "0123456789abcdef" * 2
STORED = """{"group": "things", "mode": "changes", "pin": "spark-1", "shards": {
    "0": {"digest": "2:ff", "epoch": 3, "lineage": "0123456789abcdef0123456789abcdef", "pinned": 9, "seqno": 7},
    "1": {"digest": "", "epoch": 0, "lineage": "", "pinned": 0, "seqno": 0}}, "version": 1}"""


def position(seqno: int, digest: str, pin: str = "p", lineage: str = LINEAGE) -> Position:
    return Position("things", {0: Place(seqno, 1, lineage, seqno, digest)}, pin)


def test_p20_the_stored_form_of_version_1_is_read() -> None:
    read = Position.decoded(json.loads(STORED), "things")
    assert read == Position("things", {0: Place(7, 3, LINEAGE, 9, "2:ff"), 1: BEGINNING}, "spark-1")
    text = json.dumps(read.encoded())
    assert json.loads(text) == json.loads(STORED) and text == json.dumps(json.loads(STORED), sort_keys=True)


@pytest.mark.parametrize(("changed", "said"), [
    ({"version": 2}, "has version 2, and this release reads up to 1"), ({"version": "1"}, "no version"),
    ({"group": "others"}, "belongs to group 'others', and the query reads 'things'"),
    ({"mode": "log"}, "belongs to mode=log, and the query has mode=changes"),
    ({"pin": None}, "shards or pin are missing"), ({"shards": []}, "shards or pin are missing"),
    ({"shards": {"x": {}}}, "'x' is not the number of a shard"),
    ({"shards": {"0": {"seqno": 1}}}, "shard 0 needs seqno, epoch, lineage, pinned, digest"),
    ({"shards": {"0": {"digest": "", "epoch": 1, "lineage": "zz", "pinned": 0, "seqno": 1}}}, "a place that cannot be"),
    ({"shards": {"0": {"digest": "", "epoch": 1, "lineage": "", "pinned": 0, "seqno": -1}}}, "a place that cannot be"),
])
def test_p20_what_this_release_cannot_read_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(UnreadableCheckpoint, match=said):
        Position.decoded({**json.loads(STORED), **changed}, "things")


def test_a_shard_that_did_not_change_keeps_its_place_and_has_no_task() -> None:
    start, same, other = position(5, "1:a"), position(9, "1:a", "q"), position(9, "1:b", "q")
    assert start.reached(same) == Position("things", {0: Place(5, 1, LINEAGE, 9, "1:a")}, "q")
    assert not start.moved(start.reached(same)) and stretches(start, start.reached(same)) == []
    assert start.reached(other) == other and start.moved(other)
    assert stretches(start, other) == [Stretch(0, start.shards[0], other.shards[0])]
    restored = position(5, "1:a", "q", "f" * 32)
    assert start.moved(start.reached(restored)), "another history, with the same documents"
    unknown = position(9, "", "q")
    assert position(5, "").moved(position(5, "").reached(unknown)), "an unknown state is no equal one"


def test_shards_that_are_added_and_gone() -> None:
    start, place = position(5, "1:a"), Place(3, 1, LINEAGE, 3, "1:c")
    grown = start.reached(Position("things", {0: start.shards[0], 1: place}, "q"))
    assert stretches(start, grown) == [Stretch(1, BEGINNING, place)]
    left_out = start.reached(Position("things", {1: place}, ""))
    assert left_out.shards[0] == start.shards[0]
    with pytest.raises(ShardGone, match="Shard 0 of group 'things' is gone: the query stands at seqno 5"):
        stretches(start, start.reached(Position("things", {1: place}, "q")))
