"""What is known of objects: an older version never replaces a newer one, in whatever order they come."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from tidemark_operator.kube.api import EVERYWHERE, MACHINES, PODS
from tidemark_operator.kube.cache import Cache


def item(version: int, name: str = "a", namespace: str = "data") -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name, "resourceVersion": str(version)}}


def test_news_in_any_order_end_with_the_newest() -> None:
    for order in permutations((9, 10, 11)):  # as text, 9 is the greatest
        cache = Cache()
        for version in order:
            cache.learn(item(version))
        assert cache.get("data", "a") == item(11)


def test_a_late_answer_does_not_bring_back_what_was_deleted() -> None:
    cache = Cache()
    cache.learn(item(5))
    assert cache.forget(item(7))
    assert not cache.learn(item(6))
    assert cache.get("data", "a") is None
    assert cache.learn(item(8)), "made again"
    assert not cache.forget(item(7)), "the deletion of the one before comes late"
    assert cache.get("data", "a") == item(8)


def test_what_our_own_write_told_first_is_still_news_to_who_watches() -> None:
    cache = Cache()
    cache.learn(item(5))  # the answer to our own write, with what somebody else changed in version 4
    assert not cache.learn(item(4))
    assert cache.learn(item(5))


def test_a_list_tells_what_changed_and_what_is_gone() -> None:
    cache = Cache()
    cache.learn(item(5))
    cache.learn(item(5, "b"))
    cache.learn(item(5, "c", "other"))
    cache.learn(item(12, "made-since-the-list"))
    assert cache.replace("data", [item(5), item(9, "d")], 10) == [item(9, "d"), item(5, "b")]
    assert {one["metadata"]["name"] for one in cache} == {"a", "c", "d", "made-since-the-list"}
    assert cache.replace("data", [item(5), item(9, "d")], 10) == []


def test_a_list_of_all_namespaces_tells_what_is_gone_from_any() -> None:
    cache = Cache()
    for namespace in ("data", "other"):
        cache.learn(item(5, namespace=namespace))
    assert cache.replace(EVERYWHERE, [item(5)], 6) == [item(5, namespace="other")]
    assert PODS.path(EVERYWHERE) == "/api/v1/pods"


def test_what_belongs_to_no_namespace_is_known_by_name_alone() -> None:
    cache = Cache()
    machine = {"metadata": {"name": "worker-1", "resourceVersion": "5"}}
    cache.learn(machine)
    assert cache.get("", "worker-1") == machine
    assert cache.replace("", [], 6) == [machine]
    assert MACHINES.path("", "worker-1") == "/api/v1/nodes/worker-1"
