"""The table of kinds: every place that treats kinds differently knows every row, and what is not served says so."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from fake_node import FakeNode
from test_service import CLUSTER, GROUP, service, three
from tidemark_core.base.ids import ShardKind
from tidemark_operator.kube.api import CUSTOM
from tidemark_operator.kube.occurrences import occurrences
from tidemark_operator.metadata import COUNTERS, Keys
from tidemark_operator.records import area_of
from tidemark_operator.resources.conditions import CONDITIONS
from tidemark_operator.resources.events import EVENTS
from tidemark_operator.resources.kinds import KINDS, STORED, kind_of, not_served, not_served_message
from tidemark_operator.resources.loggroup import GroupKind
from tidemark_operator.service import OperatorService

from tests.waiting import until

__all__ = ["service", "three"]  # fixtures

DOCUMENTS = GROUP.replace("shards: 2", "shards: 2, kind: Documents")


@pytest.mark.parametrize("kind", KINDS)
def test_every_place_that_looks_a_kind_up_knows_every_row(kind: str) -> None:
    row = KINDS[kind]
    assert row.view and row.title
    assert CONDITIONS[kind] and EVENTS[kind]
    assert CUSTOM[kind].plural == row.names.plural
    assert occurrences(kind, {}, {}) == []
    assert not row.counter or row.counter in COUNTERS


def test_areas_and_words_belong_to_one_kind() -> None:
    keys = Keys("/t")
    areas = [area_of(keys.object(kind, "x").removeprefix(keys.everything))[0] for kind in STORED]
    assert len(set(areas)) == len(STORED)
    for word, kind in {
        "tmc": "TidemarkCluster", "clusters": "TidemarkCluster", "group": "LogGroup", "LogGroups": "LogGroup",
        "tks": "Keyspace", "shard": "Shard", "reconfigurations": "Reconfiguration", "pods": "",
    }.items():
        assert kind_of(word) == kind
    words = [
        word for row in KINDS.values()
        for word in (row.names.singular, row.names.plural, row.names.short, *row.words)]
    assert len(set(words)) == len(words)


@pytest.fixture
def without_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve as a release would that does not serve one variant of a kind."""
    flags = MappingProxyType({GroupKind.LOG: True, GroupKind.DOCUMENTS: False})
    monkeypatch.setitem(KINDS, "LogGroup", replace(KINDS["LogGroup"], variants=flags))


def test_this_release_serves_every_kind_of_log_group() -> None:
    assert [not_served("LogGroup", {"kind": kind}) for kind in GroupKind] == [""] * len(GroupKind)


@pytest.mark.usefixtures("without_documents")
@pytest.mark.parametrize(("kind", "spec", "what"), [
    ("Keyspace", {}, ""),
    ("LogGroup", {"kind": "Documents"}, "log groups of kind Documents"),
    ("LogGroup", {"kind": "Log"}, ""),
    ("LogGroup", {}, ""),
    ("TidemarkCluster", {}, ""),
])
def test_the_table_alone_says_what_is_served(
    kind: str, spec: dict[str, str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not_served(kind, spec) == what
    assert bool(not_served_message(kind, spec)) == bool(what)
    monkeypatch.setitem(KINDS, kind, replace(KINDS[kind], served=True, variants=MappingProxyType({})))
    assert not_served(kind, spec) == not_served_message(kind, spec) == ""


def conditions(service: OperatorService) -> dict[str, tuple[str, str]]:
    (shown,) = service.show("LogGroup", "orders") or ()
    return {each["type"]: (each["status"], each["reason"]) for each in shown["status"]["conditions"]}


@pytest.mark.usefixtures("without_documents")
async def test_nothing_is_created_for_what_is_not_served_and_its_stored_object_is_served_once_the_flag_says_so(
    service: OperatorService, three: list[FakeNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, done = await service.objects.apply(CLUSTER + "---" + DOCUMENTS % "")
    assert done.startswith("LogGroup/orders created; NotSupported: this release does not serve log groups of kind Doc")
    (again,) = await service.objects.apply(DOCUMENTS % "")
    assert again == done.replace("created", "unchanged")
    (changed,) = await service.objects.apply((DOCUMENTS % "").replace("factor: 3", "factor: 2"))
    assert changed.startswith("LogGroup/orders configured; NotSupported: ")
    await service.objects.apply((GROUP % "").replace("orders", "logs"))
    await until(lambda: all(one.newest_map.groups for one in three))
    assert [group.name for group in three[0].newest_map.groups] == ["logs"]
    assert not service.mirror.reconfigurations, "a changed factor asks for nothing"
    assert [group.name for group in service.hosted_groups()] == ["logs"]
    stored = service.mirror.groups["orders"].value
    assert not [shard for shard in service.mirror.shards if shard in service.groups()["orders"].shard_ids()]
    assert conditions(service) == {
        "Ready": ("False", "NotSupported"), "Available": ("False", "NotSupported"),
        "Stalled": ("True", "NotSupported"), "Reconciling": ("False", "NotSupported"),
        "FullyReplicated": ("Unknown", "NotSupported"), "QuorumReachable": ("Unknown", "NotSupported"),
        "PlacementSatisfied": ("Unknown", "NotSupported")}

    monkeypatch.setitem(KINDS, "LogGroup", replace(KINDS["LogGroup"], variants=MappingProxyType({})))
    service.poke()
    await until(lambda: len(three[0].newest_map.groups) == 2)
    assert service.mirror.groups["orders"].value == stored
    assert conditions(service)["PlacementSatisfied"] == ("True", "DomainsDistinct")
    assert conditions(service)["Stalled"] == ("False", "Reconciled")


@pytest.mark.usefixtures("without_documents")
async def test_shards_that_an_older_release_created_stay_reachable(
    service: OperatorService, three: list[FakeNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setitem(KINDS, "LogGroup", replace(KINDS["LogGroup"], variants=MappingProxyType({})))
        await service.objects.apply(CLUSTER + "---" + DOCUMENTS % "")
        await until(lambda: all(one.newest_map.groups for one in three))
    (changed,) = await service.objects.apply(DOCUMENTS % ", synchroQuorum: 3")
    assert changed.startswith("LogGroup/orders configured; NotSupported: ")
    await until(lambda: all(
        [(group.name, group.synchro_quorum) for group in one.newest_map.groups] == [("orders", "3")] for one in three))
    assert [group.name for group in service.hosted_groups()] == ["orders"]
    found = conditions(service)
    assert (found["Ready"], found["Stalled"]) == (("False", "NotSupported"), ("True", "NotSupported"))
    assert found["PlacementSatisfied"] == ("False", "NotEnoughDomains"), "of the shards that there are"


async def test_u54_shards_of_documents_have_a_lineage_each_and_those_of_a_log_have_none(
    service: OperatorService, three: list[FakeNode]
) -> None:
    await service.objects.apply(CLUSTER + "---" + DOCUMENTS % "" + "---" + (GROUP % "").replace("orders", "logs"))
    await until(lambda: len(three[0].newest_map.groups) == 2)
    assert [(group.name, group.kind) for group in three[0].newest_map.groups] == [
        ("logs", "Log"), ("orders", "Documents")]
    groups, records = service.groups(), service.records()
    docs = [records[shard] for shard in groups["orders"].shard_ids()]
    assert {record.kind for record in docs} == {ShardKind.DOCUMENTS}
    lineages = {record.lineage for record in docs}
    assert len(lineages) == len(docs) == 2 and all(len(lineage) == 32 for lineage in lineages)
    assert {(record.kind, record.lineage) for record in (records[shard] for shard in groups["logs"].shard_ids())} == {
        (ShardKind.LOG, "")}
