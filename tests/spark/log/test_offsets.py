"""Offsets that users write, and positions of checkpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark_tidemark.log.offsets import EARLIEST, LATEST, Position, UnreadableCheckpoint, parsed
from pyspark_tidemark.options import InvalidOption

STORED = '{"group": "orders", "minPartitions": 4, "shards": {"0": 120, "10": 7, "2": 0}, "version": 1}'
"""As a checkpoint of version 1 holds it."""

STORED_2 = '{"group": "orders", "groupId": 3, "minPartitions": 4, "shards": {"0": 120, "10": 7, "2": 0}, "version": 2}'
"""As one of version 2 does."""


@pytest.mark.parametrize(("text", "place"), [
    ("earliest", EARLIEST), (" Latest ", LATEST), ('{"orders": "EARLIEST"}', EARLIEST),
    ('{"orders":"latest"}', LATEST)])
def test_p11_a_word_stands_for_every_shard(text: str, place: int) -> None:
    assert parsed("startingOffsets", text, "orders").of("startingOffsets", [2, 0]) == {0: place, 2: place}


def test_offsets_by_shard_are_read() -> None:
    given = parsed("startingOffsets", '{"orders": {"1": -2, "0": 23, "2": -1, "3": 9223372036854775807}}', "orders")
    assert given.of("startingOffsets", range(4)) == {0: 23, 1: EARLIEST, 2: LATEST, 3: 2**63 - 1}


@pytest.mark.parametrize(("said", "wrong"), [
    ('{"0": 1}', "1, 2 not named"), ('{"0": 1, "1": 1, "2": 1, "7": 1, "9": 1}', "7, 9 not there"),
    ('{"0": 1, "1": 1, "3": 1}', "2 not named, 3 not there")])
def test_p11_offsets_must_name_exactly_the_shards(said: str, wrong: str) -> None:
    given = parsed("endingOffsets", f'{{"orders": {said}}}', "orders")
    with pytest.raises(InvalidOption) as refused:
        given.of("endingOffsets", [0, 1, 2])
    assert str(refused.value) == f"endingOffsets: must name exactly the shards of the group (0, 1, 2): {wrong}"


@pytest.mark.parametrize(("text", "said"), [
    ("", "is no JSON"), ("earlist", "is no JSON"), ("[1]", "must be earliest, latest"), ("7", "must be earliest"),
    ("{}", "does not name group 'orders'"), ('{"others": "latest"}', "names group 'others'"),
    ('{"orders": "soon"}', "'soon' of group 'orders' is neither"), ('{"orders": {}}', "needs offsets by shard"),
    ('{"orders": null}', "needs offsets by shard"), ('{"orders": [1]}', "needs offsets by shard"),
    ('{"orders": {"a": 1}}', "'a' is not the number of a shard"), ('{"orders": {"-1": 1}}', "'-1' is not the number"),
    ('{"orders": {"007": 1}}', "'007' is not the number"), ('{"orders": {"２": 1}}', "is not the number of a shard"),
    ('{"orders": {"4294967296": 1}}', "is not the number of a shard"), ('{"orders": {"0": -3}}', "-3 of shard 0 is no"),
    ('{"orders": {"0": 9223372036854775808}}', "of shard 0 is no offset"), ('{"orders": {"0": 1.5}}', "1.5 of shard 0"),
    ('{"orders": {"0": true}}', "True of shard 0"), ('{"orders": {"0": "1"}}', "'1' of shard 0 is no offset"),
    ('{"orders": {"0": 1, "0": 2}}', "names '0' twice"), ("[" * 100_000, "is no JSON"),
])
def test_p11_text_of_another_form_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        parsed("startingOffsets", text, "orders")
    assert refused.value.field == "startingOffsets"
    assert said in str(refused.value)


def test_p6_equal_positions_have_equal_text() -> None:
    one = Position("orders", {10: 7, 0: 120, 2: 0}, 4, 3)
    other = Position("orders", {2: 0, 10: 7, 0: 120}, 4, 3)
    assert json.dumps(one.encoded()) == json.dumps(other.encoded()) == STORED_2
    assert json.dumps(one.encoded(), sort_keys=True) == STORED_2


def test_p20_the_stored_form_of_version_1_is_read() -> None:
    read = Position.decoded(json.loads(STORED), "orders")
    assert read == Position("orders", {0: 120, 2: 0, 10: 7}, 4, 0)


def test_p20_the_stored_form_of_version_2_is_read() -> None:
    read = Position.decoded(json.loads(STORED_2), "orders")
    assert read == Position("orders", {0: 120, 2: 0, 10: 7}, 4, 3)
    assert json.dumps(read.encoded()) == STORED_2


@pytest.mark.parametrize(("change", "said"), [
    ({"version": 3}, "has version 3, and this release reads up to 2"), ({"version": 0}, "no version"),
    ({"version": None}, "no version"), ({"version": True}, "no version"),
    ({"group": "others"}, "belongs to group 'others', and the query reads 'orders'"),
    ({"shards": None}, "damaged"), ({"shards": {"x": 1}}, "damaged"), ({"shards": {"0": -1}}, "damaged"),
    ({"shards": {"0": "1"}}, "damaged"), ({"minPartitions": -1}, "damaged"), ({"minPartitions": "4"}, "damaged"),
    ({"groupId": None}, "damaged"), ({"groupId": -1}, "damaged"), ({"groupId": "3"}, "damaged"),
])
def test_p20_what_this_release_cannot_read_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnreadableCheckpoint) as refused:
        Position.decoded({**json.loads(STORED_2), **change}, "orders")
    assert said in str(refused.value)
