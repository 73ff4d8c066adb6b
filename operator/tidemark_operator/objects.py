"""Objects: manifests into etcd and out again; each change is one transaction on the object's revision.

A refusal is a value and nothing was changed.  Applying the same manifest twice changes nothing.
Stays out: carrying the objects out (`groups`, `reconfigure`), their status (`status`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidemark_core.base.refusals import Reason, Refused

from .condition_memory import timestamp
from .etcd import Conflict, EtcdStore, Saved, StoreUnavailable, Unavailable, Unknown, Write
from .metadata import RECONFIGURATIONS, Keys, StoredObject, allocate
from .mirror import Mirror, Versioned
from .notes import notes, unsupported
from .resources import API_VERSION, InvalidManifest, Resource, check_update, load_manifests, load_resource
from .resources.kinds import KINDS, Deletion, not_served
from .resources.labels import Label

SOURCE = "manifest"
UNKNOWN = {
    "LogGroup": Reason.UNKNOWN_GROUP, "Keyspace": Reason.UNKNOWN_KEYSPACE, "Shard": Reason.UNKNOWN_SHARD}
"""The reason that refuses a request for an object that does not exist, by kind; others have INVALID_SPEC."""
ATTEMPTS_MAX = 5
UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Identity:
    """What an API server gave an object that it keeps; the uid counts when the object is new here."""

    uid: str
    generation: int
    created: str


@dataclass(frozen=True, slots=True)
class _Refusal(Exception):
    refused: Refused


class Objects:
    """Apply, delete and amend the stored objects of one cluster; `zones` tells those of the nodes that are up."""

    def __init__(
        self, store: EtcdStore, keys: Keys, mirror: Mirror, cluster: str, zones: Callable[[], Collection[str]],
        *, tls: bool = False,
    ) -> None:
        self._store = store
        self._keys = keys
        self._mirror = mirror
        self._cluster = cluster
        self._tls = tls
        self._zones = zones
        self._parsing = asyncio.Lock()

    async def apply(self, text: str, *, dry_run: bool = False) -> list[str] | Refused:
        """Apply manifests; return one line per object, such as "LogGroup/orders created".

        All are checked before the first is written.  With `dry_run` nothing is written.
        """
        try:
            async with self._parsing:  # a hostile text takes seconds: beside the loop, and one at a time
                resources = await asyncio.to_thread(load_manifests, text, SOURCE)
            spaces: dict[tuple[str, str], str] = {}
            for resource in resources:
                _check_namespace(resource, spaces.setdefault((resource.kind, resource.name), resource.namespace))
                self._check(resource)
            return [self._with_notes(await self._apply_one(resource, dry_run), resource) for resource in resources]
        except InvalidManifest as error:
            return Refused(Reason.INVALID_SPEC, str(error))
        except _Refusal as refusal:
            return refusal.refused
        except StoreUnavailable as error:
            return Refused(Reason.METADATA_UNAVAILABLE, str(error))

    async def adopt(self, manifest: Mapping[str, Any], identity: Identity) -> str | Refused:
        """Apply one object that an API server keeps; its generation is the one of there.  Raises StoreUnavailable.

        There are no notes: the server has written every default out, and they would be on fields that nobody set.
        """
        try:
            resource = load_resource(manifest, "object")
            self._check(resource)
            return await self._apply_one(resource, False, identity)
        except InvalidManifest as error:
            return Refused(Reason.INVALID_SPEC, error.told())
        except _Refusal as refusal:
            return refusal.refused

    async def let_go(self, kind: str, name: str) -> Refused | None:
        """An object is gone from the API server that kept it: its data stays, whatever its policy says.

        A Reconfiguration that runs is canceled first.  Raises StoreUnavailable.
        """
        match KINDS[kind].deletion:
            case Deletion.DETACH:
                return await self._detach(kind, name, whatever_policy=True)
            case Deletion.WHEN_OVER:
                known = self._mirror.known(kind, name)
                if known is not None and _runs(known.value) and not known.value.spec.get("cancel"):
                    manifest = {**known.value.manifest, "spec": {**known.value.spec, "cancel": True}}
                    key = self._keys.object(kind, name)
                    if not await self._write(key, replace(known.value, manifest=manifest), known.revision):
                        await self._read_again(key, known)
                return await self._delete_when_over(kind, name)
        return await self.delete(kind, name)

    async def delete_data(self, kind: str, name: str) -> bool:
        """Have an object go with its data, which cannot be taken back; False when there is none of that name.

        Raises StoreUnavailable.
        """
        return await self._rewrite(kind, name, lambda known: replace(known, detached=True, deleting=True))

    async def number(self, kind: str, name: str) -> bool:
        """Number an object that an older release stored without a number; False: another write came first.

        Raises StoreUnavailable.
        """
        known = self._mirror.known(kind, name)
        if known is None or known.value.number:
            return False
        number = await allocate(self._store, self._keys, KINDS[kind].counter)
        return await self._write(self._keys.object(kind, name), replace(known.value, number=number), known.revision)

    async def delete(self, kind: str, name: str) -> Refused | None:
        """Delete an object as its policy says; what runs is stopped by its own means, not by this."""
        row = KINDS.get(kind)
        if row is None:
            return Refused(Reason.INVALID_SPEC, f"kind {kind!r} cannot be deleted")
        try:
            match row.deletion:
                case Deletion.DETACH:
                    return await self._detach(kind, name)
                case Deletion.WHEN_OVER:
                    return await self._delete_when_over(kind, name)
                case Deletion.REFUSED:
                    return Refused(Reason.INVALID_SPEC, row.undeletable)
        except StoreUnavailable as error:
            return Refused(Reason.METADATA_UNAVAILABLE, str(error))

    async def save_status(self, name: str, status: Mapping[str, Any]) -> bool:
        """Store the status of a Reconfiguration; False when the object is gone.  Raises StoreUnavailable."""
        return await self._rewrite("Reconfiguration", name, lambda known: replace(known, status=dict(status)))

    # --- one object -----------------------------------------------------------------------------------------

    def _check(self, resource: Resource) -> None:
        """Refuse what can be refused before anything is written."""
        manifest = resource.manifest()
        if resource.cluster != self._cluster:
            field = "metadata.name" if KINDS[resource.kind].single else "spec.clusterRef.name"
            raise _Refusal(Refused(
                Reason.INVALID_SPEC,
                f"{resource.kind}/{resource.name}: {field} is {resource.cluster!r}, "
                f"this operator runs {self._cluster!r}"))
        held = self._mirror.cluster
        if held is not None and held.value.name != self._cluster:
            raise _Refusal(Refused(
                Reason.INVALID_SPEC,
                f"{self._keys.prefix} holds the metadata of the cluster {held.value.name!r} (ClusterIDMismatch)"))
        known = self._known(resource)
        if known is None:
            return
        before = load_resource(known.value.manifest, "stored object")
        if known.value.detached:  # nobody's object any more; one that was recovered from nodes never had a namespace
            before = before.in_namespace(resource.namespace)
        _check_namespace(resource, before.namespace)
        if known.value.deleting:
            raise _Refusal(Refused(
                Reason.INVALID_SPEC,
                f"{resource.kind}/{resource.name}: the data of that name is still being deleted"))
        shape = KINDS[resource.kind].shape
        if known.value.detached and known.value.spec[shape] != manifest["spec"][shape]:
            raise _Refusal(Refused(
                Reason.INVALID_SPEC,
                f"{resource.kind}/{resource.name}: spec.{shape} is {manifest['spec'][shape]}, the kept data of "
                f"that name has {known.value.spec[shape]} {shape} (AdoptionMismatch)"))
        check_update(before, resource, SOURCE)

    def _with_notes(self, done: str, resource: Resource) -> str:
        """Add what this release does not serve, and notes on a new or changed manifest; repeat no other note."""
        told = [] if done.endswith(UNCHANGED) else notes(resource, self._zones(), tls=self._tls)
        return "; ".join([done, *unsupported(resource), *told])

    async def _apply_one(self, resource: Resource, dry_run: bool, identity: Identity | None = None) -> str:
        title = f"{resource.kind}/{resource.name}"
        for _attempt in range(ATTEMPTS_MAX):
            known = self._known(resource)
            manifest = resource.manifest()
            if (
                known is not None and not known.value.detached and _same(known.value.manifest, manifest)
                and (identity is None or (identity.generation == known.value.generation and known.value.kept))
            ):
                return f"{title} {UNCHANGED}"
            adopts = known is not None and known.value.detached
            what = "created" if known is None else "adopted" if adopts else "configured"
            if dry_run:
                return f"{title} {what} (dry run)"
            if known is None:
                number = 0
                if counter := KINDS[resource.kind].counter:
                    number = await allocate(self._store, self._keys, counter)
                new = identity or Identity(str(uuid.uuid4()), 1, timestamp())
                stored = StoredObject(
                    manifest, new.uid, new.created, new.generation, number, kept=identity is not None)
                if await self._write(self._key(resource), stored, 0):
                    return f"{title} {what}"
            else:
                changed = manifest["spec"] != known.value.spec
                generation = identity.generation if identity else known.value.generation + changed
                kept = known.value.kept or identity is not None
                stored = replace(known.value, manifest=manifest, generation=generation, detached=False, kept=kept)
                also = self._factor_change(known.value, stored) if resource.kind == "LogGroup" else None
                if also is not None:
                    number = await allocate(self._store, self._keys, RECONFIGURATIONS)
                    also = replace(also, number=number)
                if await self._write(self._key(resource), stored, known.revision, also):
                    return f"{title} {what}"
            await self._read_again(self._key(resource), known)
            self._check(resource)
        raise StoreUnavailable(f"{title} is contended: {ATTEMPTS_MAX} attempts lost their race")

    def _factor_change(self, before: StoredObject, after: StoredObject) -> StoredObject | None:
        """Return the Reconfiguration that a changed factor asks for, under `onFactorChange: Automatic`."""
        old, new = before.spec["replication"]["factor"], after.spec["replication"]["factor"]
        if old == new or not_served("LogGroup", after.spec):
            return None
        if self._policy().get("onFactorChange", "Automatic") != "Automatic":
            return None
        kind, field = ("Expand", "expand") if new > old else ("Contract", "contract")
        block: dict[str, Any] = {"logGroup": after.name, "factor": new}
        if new < old and new < 3:
            block["belowThree"] = "Allowed"  # the declared factor says so already
        return self._own(f"{after.name}-{field}-{after.generation}", after, {"type": kind, field: block})

    def _own(self, name: str, cause: StoredObject, spec: Mapping[str, Any]) -> StoredObject:
        """Return a Reconfiguration of the operator itself; where `spec` does not speak of approval the cluster does."""
        made = load_resource({
            "apiVersion": API_VERSION,
            "kind": "Reconfiguration",
            "metadata": {
                "name": name, "namespace": cause.manifest["metadata"].get("namespace", "default"),
                "labels": {Label.CREATED_BY: "operator"},
            },
            "spec": {
                "clusterRef": {"name": self._cluster}, "approval": self._policy().get("approval", "Automatic"), **spec,
            },
        }, "operator")
        return StoredObject(made.manifest(), str(uuid.uuid4()), timestamp())

    def _policy(self) -> Mapping[str, Any]:
        """Return what the cluster says of Reconfigurations."""
        cluster = self._mirror.cluster
        return (cluster.value.spec.get("reconfiguration") or {}) if cluster is not None else {}

    async def request(self, name: str, spec: Mapping[str, Any]) -> bool:
        """Ask for a Reconfiguration by itself; False when there is one of that name.  Raises StoreUnavailable."""
        cluster = self._mirror.cluster
        if cluster is None or name in self._mirror.reconfigurations:
            return False
        number = await allocate(self._store, self._keys, RECONFIGURATIONS)
        key = self._keys.object("Reconfiguration", name)
        return await self._write(key, replace(self._own(name, cluster.value, spec), number=number), 0)

    async def _detach(self, kind: str, name: str, *, whatever_policy: bool = False) -> Refused | None:
        known = self._mirror.known(kind, name)
        if known is None or known.value.detached:
            return Refused(UNKNOWN[kind], f"there is no {KINDS[kind].title} {name!r}")

        def gone(known: StoredObject) -> StoredObject:
            with_data = not whatever_policy and known.spec.get("deletionPolicy", "Retain") != "Retain"
            return replace(known, detached=True, deleting=known.deleting or with_data)

        await self._rewrite(kind, name, gone)
        return None

    async def _delete_when_over(self, kind: str, name: str) -> Refused | None:
        known = self._mirror.known(kind, name)
        if known is not None and _runs(known.value):
            return Refused(
                Reason.WRONG_STATE,
                f"reconfiguration {name} is {known.value.status.get('stage')}: set spec.cancel to true and delete "
                "it when it is Finished")
        return await self._delete_stored(kind, name)

    async def _delete_stored(self, kind: str, name: str) -> Refused | None:
        known, what = self._mirror.known(kind, name), KINDS[kind].title
        if known is None:
            return Refused(Reason.INVALID_SPEC, f"there is no {what} {name!r}")
        if not await self._mirror.replace(
                self._store, [Write(self._keys.object(kind, name), None, known.revision)]):
            return Refused(Reason.WRONG_STATE, f"{what} {name} changed meanwhile: try again")
        return None

    # --- reading and writing ----------------------------------------------------------------------------------

    def _known(self, resource: Resource) -> Versioned[StoredObject] | None:
        return self._mirror.known(resource.kind, resource.name)

    def _key(self, resource: Resource) -> str:
        return self._keys.object(resource.kind, resource.name)

    async def _write(
        self, key: str, stored: StoredObject, expected: int, also: StoredObject | None = None
    ) -> bool:
        """Write one object (and a new Reconfiguration beside it); False when the race was lost."""
        writes = [Write(key, stored.encode(), expected)]
        if also is not None:
            writes.append(Write(self._keys.object("Reconfiguration", also.name), also.encode(), 0))
        match await self._mirror.write(self._store, writes):
            case Saved():
                return True
            case Conflict():
                return False
            case Unknown(message) | Unavailable(message):
                item = await self._store.get(key)  # raises when etcd is away; the caller may apply again
                if item is not None and item.value == stored.encode():
                    self._mirror.learn(key, item.value, item.revision)
                    return True
                raise StoreUnavailable(message)

    async def _rewrite(self, kind: str, name: str, change: Callable[[StoredObject], StoredObject]) -> bool:
        """Change what is stored of an object; False when there is none.  Raises StoreUnavailable."""
        key = self._keys.object(kind, name)
        for _attempt in range(ATTEMPTS_MAX):
            known = self._mirror.known(kind, name)
            if known is None:
                return False
            wanted = change(known.value)
            if wanted == known.value or await self._write(key, wanted, known.revision):
                return True
            await self._read_again(key, known)
        raise StoreUnavailable(f"{key} is contended")

    async def _read_again(self, key: str, known: Versioned[StoredObject] | None) -> None:
        item = await self._store.get(key)
        if item is not None:
            self._mirror.learn(key, item.value, item.revision)
        elif known is not None:
            self._mirror.learn(key, None, known.revision + 1)  # deleted then or later, and created again later still


def _check_namespace(resource: Resource, known: str) -> None:
    """Objects are kept by kind and name; one of another namespace is another object, and there is no room for two."""
    if resource.namespace != known:
        raise _Refusal(Refused(
            Reason.INVALID_SPEC,
            f"{resource.kind}/{resource.name}: metadata.namespace is {resource.namespace!r}, the object of that name "
            f"is in {known!r}; one of the two needs another name"))


def _runs(reconfiguration: StoredObject) -> bool:
    return reconfiguration.status.get("stage") not in ("Finished", "Queued", None)


def _same(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Compare what a user writes: spec, labels and annotations."""

    def written(manifest: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        metadata = manifest["metadata"]
        return manifest["spec"], metadata.get("labels") or {}, metadata.get("annotations") or {}

    return written(before) == written(after)
