"""Where the nodes of a local cluster are to stand, as its manifest or its command line says."""

from __future__ import annotations

import pytest
from tidemark_operator.local_manifests import deal, places
from tidemark_operator.local_state import LocalRuntimeError

POOLS = [
    {"name": "near", "replicas": 3, "zones": ["a", "b"], "location": {"region": "eu", "rack": "r1"}},
    {"name": "far", "replicas": 1, "location": {"region": "us"}},
    {"name": "anywhere", "replicas": 1},
]


def test_nodes_stand_where_their_pool_says() -> None:
    assert places(POOLS, []) == [
        "region=eu,zone=a,rack=r1", "region=eu,zone=b,rack=r1", "region=eu,zone=a,rack=r1", "region=us", "",
    ]


def test_given_locations_are_dealt_in_turn_over_all_pools() -> None:
    assert places(POOLS, ["rack=r1,zone=a", "zone=b"]) == [
        "zone=a,rack=r1", "zone=b", "zone=a,rack=r1", "zone=b", "zone=a,rack=r1",
    ]


def test_what_is_no_location_is_refused_by_name() -> None:
    with pytest.raises(LocalRuntimeError, match="planet=earth"):
        places(POOLS, ["zone=a", "planet=earth"])


def test_new_nodes_stand_where_nobody_stands_yet() -> None:
    wanted = ["zone=a", "zone=b", "zone=a", "zone=c"]
    assert deal(["n3", "n4"], wanted, ["zone=a", "zone=c", "zone=elsewhere"]) == {"n3": "zone=b", "n4": "zone=a"}
