"""Mirror: the newest revision of each key wins; unreadable keys are left out."""

from __future__ import annotations

import logging

import pytest
from operator_views import record
from tidemark_core.base.ids import shard_id
from tidemark_operator.etcd import Changes, Item, KeyChange, Snapshot
from tidemark_operator.metadata import Keys, NodeRecord, StoredObject
from tidemark_operator.mirror import Mirror

KEYS = Keys("/t")


def test_a_late_watch_event_does_not_take_back_what_was_written() -> None:
    mirror = Mirror(KEYS)
    shard = shard_id(1, 0)
    old, new = record("n1", epoch=1), record("n1", epoch=2)
    mirror.learn(KEYS.shard(shard), new.encode(), 9)
    mirror.apply(Changes((KeyChange(KEYS.shard(shard), old.encode(), 5),), 5))
    assert mirror.shards[shard].value == new
    mirror.learn(KEYS.shard(shard), None, 10)
    mirror.apply(Changes((KeyChange(KEYS.shard(shard), new.encode(), 9),), 9))
    assert shard not in mirror.shards


def test_a_new_snapshot_removes_what_is_gone_and_tells() -> None:
    mirror, told = Mirror(KEYS), []
    node = NodeRecord("n1", "127.0.0.1:1", "a")
    mirror.apply(Snapshot({KEYS.node("n1"): Item(node.encode(), 3)}, 4))
    assert mirror.loaded and mirror.nodes == {"n1": node}
    mirror.on_change = lambda area, name: told.append((area, name))
    mirror.apply(Snapshot({}, 8))
    assert mirror.nodes == {} and told == [("nodes", "n1")]


def test_what_cannot_be_read_is_left_out_and_the_rest_is_kept() -> None:
    mirror = Mirror(KEYS)
    good = StoredObject({"metadata": {"name": "orders"}, "spec": {}}, "uid", "2026-01-01T00:00:00Z", number=3)
    mirror.apply(Snapshot({
        KEYS.object("LogGroup", "orders"): Item(good.encode(), 1),
        KEYS.object("LogGroup", "other"): Item(b'{"format": 99}', 2),
        KEYS.shard(shard_id(1, 1)): Item(b"not json", 2),
        "/t/of/another/build": Item(b"", 3),
        KEYS.counter("next-group-id"): Item(b"many", 3),
        KEYS.operator: Item(b"\xff", 3),
    }, 3))
    assert mirror.groups["orders"].value == good
    assert set(mirror.groups) == {"orders"} and not mirror.shards


@pytest.mark.parametrize("key", [KEYS.shard(shard_id(1, 1)), KEYS.node("n1"), KEYS.object("LogGroup", "orders")])
def test_a_record_of_a_newer_release_is_left_out_and_the_log_says_what_to_do(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        Mirror(KEYS).learn(key, b'{"format": 99}', 2)
    [line] = caplog.messages
    assert line.startswith(f"{key}: ") and "has format 99" in line
    assert "upgrade the operator to that release or a newer one; it is left as it is" in line
