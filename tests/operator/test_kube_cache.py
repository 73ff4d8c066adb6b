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


def labelled(version: int, name: str, cluster: str, namespace: str = "data") -> dict[str, Any]:
    made = item(version, name, namespace)
    made["metadata"] |= {"labels": {"tidemark.dev/cluster": cluster}, "managedFields": [{"manager": "x"}]}
    return made


def test_objects_are_found_by_their_cluster() -> None:
    cache = Cache()
    for one in (labelled(1, "a", "prod"), labelled(1, "b", "prod"), labelled(1, "c", "other"),
                labelled(1, "d", "prod", "elsewhere"), item(1, "e")):
        cache.learn(one)
    assert set(cache.of_cluster("data", "prod")) == {"a", "b"}
    cache.learn(labelled(2, "a", "other"))
    cache.forget(labelled(2, "b", "prod"))
    assert set(cache.of_cluster("data", "prod")) == set()
    assert set(cache.of_cluster("data", "other")) == {"a", "c"}
    cache.replace("data", [labelled(3, "f", "prod")], 3)
    assert (set(cache.of_cluster("data", "prod")), set(cache.of_cluster("data", "other"))) == ({"f"}, set())
    assert set(cache.of_cluster("elsewhere", "prod")) == {"d"}


def test_who_manages_what_is_not_kept_and_is_no_news() -> None:
    cache = Cache()
    cache.learn(labelled(1, "a", "prod"))
    known = cache.get("data", "a")
    assert known is not None
    assert "managedFields" not in known["metadata"]
    assert cache.replace("data", [labelled(1, "a", "prod")], 2) == []
