"""The definitions on a real API server: it takes them, and judges objects as the models do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml
from tidemark_operator.resources import KINDS, InvalidManifest, check_update, load_resource

from tests.kube.client import Kube, Object, Refused, condition
from tests.kube.control_plane import ControlPlane
from tests.resource_examples import EXAMPLES, OBJECTS, UPDATES, base, changed, example_documents, manifests
from tests.resource_judges import models_verdict, mutants

pytestmark = pytest.mark.apiserver


def plural(kind: str) -> str:
    return f"{KINDS[kind].names.plural}.tidemark.dev"


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    """The administrator in the namespace `default`, which stays clean: a namespace per example would take minutes."""
    admin = Kube(control_plane.admin)
    yield admin
    await admin.close()


def unsaid(expected: InvalidManifest, refused: Refused) -> list[str]:
    """What the models blame and the server does not, by field and message; a rule on metadata has no field there."""
    said = [(cause.get("field", ""), cause["message"]) for cause in refused.causes]
    return [
        f"{problem}: the server said {said}" for problem in expected.problems
        if not any(problem.message in message and (field == problem.field_path or problem.field_path == "metadata.name")
                   for field, message in said)
    ]


@pytest.mark.parametrize(("kind", "changes", "field"), OBJECTS)
async def test_an_object_is_judged_as_the_models_do(
    admin: Kube, kind: str, changes: dict[str, Any], field: str | None
) -> None:
    data = changed(kind, changes)
    if field is None:
        await admin.create(data, dry_run=True)
        return
    with pytest.raises(Refused) as refused:
        await admin.create(data, dry_run=True)
    assert refused.value.code == 422
    with pytest.raises(InvalidManifest) as expected:
        load_resource(data, "here")
    assert unsaid(expected.value, refused.value) == []


@pytest.mark.parametrize(("kind", "before", "after", "field"), UPDATES)
async def test_an_update_is_judged_as_the_models_do(
    admin: Kube, kind: str, before: dict[str, Any], after: dict[str, Any], field: str | None
) -> None:
    old, new = changed(kind, before), changed(kind, after)
    stored = await admin.create(old)
    new["metadata"] = {**new["metadata"], "resourceVersion": stored["metadata"]["resourceVersion"]}
    try:
        if field is None:
            await admin.replace(new, dry_run=True)
            return
        with pytest.raises(Refused) as refused:
            await admin.replace(new, dry_run=True)
    finally:
        await admin.delete(plural(kind), old["metadata"]["name"])
    assert refused.value.code == 422
    with pytest.raises(InvalidManifest) as expected:
        check_update(load_resource(old, "old"), load_resource(changed(kind, after), "new"), "new")
    assert unsaid(expected.value, refused.value) == []


async def refused_strictly(admin: Kube, data: Object) -> bool:
    """Whether the server refuses to create it, unknown fields included, as `kubectl apply` asks it to."""
    where = await admin.path_of(data, "default")
    metadata = {name: value for name, value in data["metadata"].items() if name != "namespace"}
    body = {**data, "metadata": metadata}
    try:
        await admin.raw("POST", f"{where}?dryRun=All&fieldValidation=Strict", body)
    except Refused as refused:
        assert refused.code in (400, 422), refused
        return True
    return False


@pytest.mark.parametrize(
    "data", example_documents(), ids=lambda data: f"{data['kind']}-{data['metadata']['name']}")
async def test_everything_made_of_an_example_is_judged_as_the_models_do(admin: Kube, data: Object) -> None:
    """The models judge again what the operator reads: both must draw the line at the same place."""
    assert not await refused_strictly(admin, data)
    disagreed = [
        what for what, mutant in mutants(data)
        if await refused_strictly(admin, mutant) is not (models_verdict(mutant) is not None)
    ]
    assert not disagreed, "\n".join(disagreed)


@pytest.mark.parametrize(
    "data", [each for each in manifests(EXAMPLES / "kubernetes") if each["kind"] not in KINDS],
    ids=lambda data: f"{data['kind']}-{data['metadata']['name']}")
async def test_pods_jobs_and_what_they_need_are_taken_as_the_examples_write_them(admin: Kube, data: Object) -> None:
    account = data.get("spec", {}).get("serviceAccountName")
    if account:     # the server looks for it before it takes a pod
        await admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
    try:
        assert not await refused_strictly(admin, data)
        assert await refused_strictly(admin, {**data, "unheardOf": 1}), "the server looks at every field"
    finally:
        if account:
            await admin.delete("serviceaccounts", account)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_definition_is_accepted_whole(admin: Kube, kind: str) -> None:
    definition = await admin.get("customresourcedefinitions.apiextensions.k8s.io", plural(kind))
    assert condition(definition, "Established") == "True"
    assert condition(definition, "NamesAccepted") == "True"
    assert condition(definition, "NonStructuralSchema") == ""
    names = KINDS[kind].names
    served = {each["name"]: each for each in (await admin.raw("GET", "/apis/tidemark.dev/v1alpha1"))["resources"]}
    assert served[names.plural]["shortNames"] == [names.short]
    assert served[names.plural]["categories"] == ["tidemark"]
    assert f"{names.plural}/status" in served


@pytest.mark.parametrize("kind", KINDS)
async def test_defaults_are_those_of_the_models(admin: Kube, kind: str) -> None:
    created = await admin.create(base(kind), dry_run=True)
    model = load_resource(base(kind), "here")
    assert created["spec"] == model.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert "status" not in created


@pytest.mark.parametrize("kind", KINDS)
async def test_the_models_take_what_the_server_gives_back(kube: Kube, kind: str) -> None:
    await kube.create(changed(kind, {"metadata.finalizers": ["tidemark.dev/test"]}))
    await kube.patch(plural(kind), "it", {"metadata": {"annotations": {"tidemark.dev/pause-reconciliation": "true"}}})
    await kube.delete(plural(kind), "it")  # stays, with the time of its deletion
    found = await kube.get(plural(kind), "it")
    read = load_resource(found, "here")
    assert read.metadata.deletion_timestamp
    assert read.manifest()["spec"] == load_resource(base(kind), "here").manifest()["spec"]
    await kube.patch(plural(kind), "it", {"metadata": {"finalizers": None}})


async def test_the_status_of_a_shard_is_kept_whole(kube: Kube) -> None:
    (shard,) = yaml.safe_load_all((EXAMPLES / "kubernetes" / "shard.yaml").read_text(encoding="utf-8"))
    shard["metadata"]["namespace"] = kube.namespace
    await kube.create(shard)
    written = await kube.patch(f"{plural('Shard')}/status", "orders-0007", {"status": shard["status"]})
    assert written["status"] == shard["status"]
    returned = {"node": "prod-1", "zone": "eu-a", "role": "Joining", "sync": "CatchingUp"}  # with another disk
    twice = {"status": {"ensemble": [*shard["status"]["ensemble"], returned]}}
    assert len((await kube.patch(f"{plural('Shard')}/status", "orders-0007", twice))["status"]["ensemble"]) == 5


@pytest.mark.parametrize("kind", KINDS)
async def test_unknown_fields_are_pruned_or_refused(admin: Kube, kind: str) -> None:
    data = changed(kind, {"spec.nonsense": 1})
    with pytest.raises(Refused, match=r"nonsense"):
        await admin.apply(data, dry_run=True)
    created = await admin.create(data, dry_run=True)
    assert "nonsense" not in json.dumps(created["spec"])


@pytest.mark.parametrize("kind", KINDS)
async def test_columns_are_shown(admin: Kube, kind: str) -> None:
    names = KINDS[kind].names
    table = await admin.table(plural(kind))
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", *(c.name for c in names.columns)]
    hidden = [column["name"] for column in table["columnDefinitions"] if column.get("priority")]
    assert hidden == [column.name for column in names.columns if column.wide]


def value_at(data: Object, path: str) -> Any:
    for name in path.strip(".").split("."):
        data = data.get(name, {})
    return data


SELECTABLE = [(kind, path) for kind in KINDS for path in KINDS[kind].names.selectable_fields]


@pytest.mark.parametrize(("kind", "path"), SELECTABLE)
async def test_fields_select(kube: Kube, kind: str, path: str) -> None:
    stored = await kube.create(base(kind))
    value, field = value_at(stored, path), path.strip(".")
    value = value or ""  # a field that is not there selects as ""
    assert [each["metadata"]["name"] for each in await kube.list(plural(kind), fields=f"{field}={value}")] == ["it"]
    assert await kube.list(plural(kind), fields=f"{field}=another") == []


async def test_a_column_shows_what_status_says(kube: Kube) -> None:
    await kube.create(base("LogGroup"))
    ready = {"type": "Ready", "status": "True", "reason": "Reconciled", "message": "", "observedGeneration": 1,
             "lastTransitionTime": "2026-01-01T00:00:00Z"}
    await kube.patch(f"{plural('LogGroup')}/status", "it", {"status": {"conditions": [ready]}})
    table = await kube.table(plural("LogGroup"))
    columns = [column["name"] for column in table["columnDefinitions"]]
    shown = dict(zip(columns, table["rows"][0]["cells"], strict=True))
    assert shown["Name"] == "it"
    assert shown["Ready"] == "True"


async def test_status_and_spec_are_written_apart(kube: Kube) -> None:
    stored = await kube.create(base("LogGroup"))
    await kube.patch(plural("LogGroup"), "it", {"status": {"observedGeneration": 7}})
    assert "status" not in await kube.get(plural("LogGroup"), "it")
    await kube.patch(f"{plural('LogGroup')}/status", "it", {"status": {"observedGeneration": 1}, "spec": {"shards": 9}})
    found = await kube.get(plural("LogGroup"), "it")
    assert found["status"]["observedGeneration"] == 1
    assert found["spec"] == stored["spec"]
    assert found["metadata"]["generation"] == 1
