"""What tests say to an API server: plain dicts in and out, resources by the names that kubectl knows.

A resource is `pods`, `loggroups.tidemark.dev` or `pods/status`; where it is served is asked of the server itself.
Stays out: retries, caches, models.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kubernetes.aio.client import ApiClient, Configuration

from .control_plane import Connection

Object = dict[str, Any]

DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
LOOK_S = 0.05
WAIT_SECONDS = 60.0


class Refused(Exception):
    """The API server said no."""

    def __init__(self, status: Object) -> None:
        super().__init__(status.get("message", status))
        self.code: int = status.get("code", 0)
        self.reason: str = status.get("reason", "")
        self.message: str = status.get("message", "")
        self.causes: list[Object] = (status.get("details") or {}).get("causes") or []


@dataclass(frozen=True, slots=True)
class Served:
    prefix: str
    plural: str
    kind: str
    api_version: str
    namespaced: bool


_served_by: dict[str, tuple[dict[str, Served], dict[tuple[str, str], Served]]] = {}
"""What each server was found to serve, by resource and by kind; all clients share it, for asking takes long."""


class Kube:
    """One user of an API server; `namespace` is where namespaced objects are unless a call says otherwise."""

    def __init__(self, connection: Connection, namespace: str = "default") -> None:
        self.connection = connection
        self.namespace = namespace
        configuration = Configuration(host=connection.url, ssl_ca_cert=connection.ca_file)
        configuration.cert_file, configuration.key_file = connection.certificate_file, connection.key_file
        self._client = ApiClient(configuration)
        self._by_name, self._by_kind = _served_by.setdefault(connection.url, ({}, {}))

    async def close(self) -> None:
        await self._client.close()

    # --- one object

    async def get(self, resource: str, name: str, namespace: str | None = None) -> Object:
        return await self._json("GET", await self._path(resource, namespace, name))

    async def find(self, resource: str, name: str, namespace: str | None = None) -> Object | None:
        """Return an object or None."""
        try:
            return await self.get(resource, name, namespace)
        except Refused as refused:
            if refused.code != 404:
                raise
            return None

    async def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        served = await self._kind(manifest)
        path = self._join(served, _namespace_of(manifest))
        return await self._json("POST", path, manifest, {"dryRun": "All"} if dry_run else {})

    async def apply(
        self, manifest: Object, *, subresource: str = "", manager: str = "tests", force: bool = True,
        dry_run: bool = False,
    ) -> Object:
        """Server-side apply, of the whole object or of a subresource."""
        served = await self._kind(manifest)
        path = self._join(served, _namespace_of(manifest), manifest["metadata"]["name"], subresource)
        query = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"}
        return await self._json("PATCH", path, manifest, query | ({"dryRun": "All"} if dry_run else {}), APPLY)

    async def replace(self, manifest: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        """Update; with `resourceVersion` in it, only what was read."""
        served = await self._kind(manifest)
        path = self._join(served, _namespace_of(manifest), manifest["metadata"]["name"], subresource)
        return await self._json("PUT", path, manifest, {"dryRun": "All"} if dry_run else {})

    async def patch(self, resource: str, name: str, changes: Object, namespace: str | None = None) -> Object:
        """JSON merge patch; `pods/status` patches a subresource."""
        return await self._json("PATCH", await self._path(resource, namespace, name), changes, {}, MERGE)

    async def delete(
        self, resource: str, name: str, namespace: str | None = None, *, grace_s: int | None = None, uid: str = ""
    ) -> None:
        """Ask for a deletion, which finalizers and graceful termination may put off; absent is fine."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._json("DELETE", await self._path(resource, namespace, name), options)
        except Refused as refused:
            if refused.code != 404 and not (uid and refused.code == 409):
                raise

    async def evict(self, pod: str, namespace: str | None = None) -> None:
        """Ask for an eviction, as `kubectl drain` does.  Refused with code 429 while a disruption budget forbids it."""
        body = {
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace or self.namespace}}
        await self._json("POST", await self._path("pods/eviction", namespace, pod), body)

    # --- many objects

    async def list(self, resource: str, namespace: str | None = None, **selectors: str) -> list[Object]:
        """`labels=` and `fields=` select."""
        return list((await self.listing(resource, namespace, **selectors))["items"])

    async def listing(self, resource: str, namespace: str | None = None, **selectors: str) -> Object:
        """A list as a whole; its `metadata.resourceVersion` is where `stream` goes on."""
        served = await self._served(resource)
        found = await self._json("GET", await self._path(resource, namespace), query=_selectors(selectors))
        found["items"] = [{"apiVersion": served.api_version, "kind": served.kind, **item} for item in found["items"]]
        return found

    async def table(self, resource: str, namespace: str | None = None) -> Object:
        """What `kubectl get` prints: columnDefinitions and rows."""
        return await self._json("GET", await self._path(resource, namespace), accept=TABLE)

    async def watch(
        self, resource: str, namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield (ADDED, object) for everything that is there, then what happens; ends when the connection does."""
        listed = await self.listing(resource, namespace, **selectors)
        for item in listed["items"]:
            yield "ADDED", item
        async for event in self.stream(resource, listed["metadata"]["resourceVersion"], namespace, **selectors):
            yield event

    async def stream(
        self, resource: str, since: str, namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield what happens after a version; ends when the connection does.  Refused with 410 when that is too old."""
        query = _selectors(selectors) | {"watch": "true", "resourceVersion": since, "allowWatchBookmarks": "true"}
        response = await self._request("GET", await self._path(resource, namespace), query=query)
        try:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise Refused(event["object"])
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]
        finally:
            response.close()

    async def wait(
        self, resource: str, name: str, until: Callable[[Object], object], namespace: str | None = None,
        timeout_s: float = WAIT_SECONDS,
    ) -> Object:
        """Return the object as soon as `until` holds of it."""
        last: Object | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    async for kind, last in self.watch(resource, namespace, fields=f"metadata.name={name}"):
                        if kind != "DELETED" and until(last):
                            return last
        except TimeoutError:
            state = json.dumps(last and {"metadata": last["metadata"].get("deletionTimestamp"),
                                         "spec": last.get("spec"), "status": last.get("status")})
            raise AssertionError(f"{resource} {name} did not become what was waited for: {state}") from None

    async def wait_gone(
        self, resource: str, name: str, namespace: str | None = None, timeout_s: float = WAIT_SECONDS, uid: str = ""
    ) -> None:
        """Wait until an object, or the one with that uid, is gone."""
        last: Object | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while (last := await self.find(resource, name, namespace)) is not None:
                    if uid and last["metadata"]["uid"] != uid:
                        return
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"{resource} {name} is still there: {json.dumps(last)}") from None

    # --- anything else

    async def raw(self, method: str, path: str, body: Object | None = None) -> Object:
        return await self._json(method, path, body)

    async def path(self, resource: str, name: str | None = None, namespace: str | None = None) -> str:
        return await self._path(resource, namespace, name)

    async def path_of(self, manifest: Object, namespace: str) -> str:
        """Return where objects of the manifest's kind are created."""
        return self._join(await self._kind(manifest), namespace)

    async def _path(self, resource: str, namespace: str | None, name: str | None = None) -> str:
        plural, _, subresource = resource.partition("/")
        return self._join(await self._served(plural), namespace, name, subresource)

    def _join(self, served: Served, namespace: str | None, name: str | None = None, subresource: str = "") -> str:
        parts = [served.prefix]
        if served.namespaced:
            parts += ["namespaces", namespace or self.namespace]
        parts.append(served.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)

    async def _served(self, resource: str) -> Served:
        name = resource.partition("/")[0]
        if name not in self._by_name:
            await self._discover()
        if name not in self._by_name:
            raise LookupError(f"the API server has no {name}")
        return self._by_name[name]

    async def _kind(self, manifest: Object) -> Served:
        wanted = manifest["apiVersion"], manifest["kind"]
        if wanted not in self._by_kind:
            await self._discover()
        if wanted not in self._by_kind:
            raise LookupError(f"the API server has no {wanted[1]} of {wanted[0]}")
        return self._by_kind[wanted]

    async def _discover(self) -> None:
        for root in ("/api", "/apis"):
            for group in (await self._json("GET", root, accept=DISCOVERY))["items"]:
                group_name = group["metadata"].get("name", "")
                for number, version in enumerate(group["versions"]):
                    api_version = f"{group_name}/{version['version']}" if group_name else version["version"]
                    for found in version["resources"]:
                        served = Served(
                            f"{root}/{api_version}", found["resource"], found["responseKind"]["kind"], api_version,
                            found["scope"] == "Namespaced")
                        self._by_kind[api_version, served.kind] = served
                        if number == 0:
                            qualified = f"{served.plural}.{group_name}" if group_name else served.plural
                            self._by_name[qualified] = served

    async def _json(
        self, method: str, path: str, body: Object | None = None, query: Mapping[str, str] | None = None,
        content_type: str = "application/json", accept: str = "application/json",
    ) -> Object:
        response = await self._request(method, path, body, query, content_type, accept)
        return dict(json.loads(await response.read()))

    async def _request(
        self, method: str, path: str, body: Object | None = None, query: Mapping[str, str] | None = None,
        content_type: str = "application/json", accept: str = "application/json",
    ) -> Any:
        request = await self._client.param_serialize(
            method, path, query_params=list((query or {}).items()),
            header_params={"Content-Type": content_type, "Accept": accept}, body=body)
        answer = await self._client.call_api(*request)
        if not 200 <= answer.status < 300:
            text = (await answer.read()).decode(errors="replace")
            try:
                status = json.loads(text)
            except ValueError:
                status = {"message": text}
            raise Refused({"code": answer.status, **status})
        return answer.response


def _namespace_of(manifest: Object) -> str | None:
    namespace = manifest["metadata"].get("namespace")
    return str(namespace) if namespace else None


def _selectors(selectors: Mapping[str, str]) -> dict[str, str]:
    return {f"{name.removesuffix('s')}Selector": value for name, value in selectors.items()}


def said(manifest: Object, kind: str) -> tuple[str, str, str]:
    """Return status, reason and message of a condition, "" each when there is none."""
    for each in manifest.get("status", {}).get("conditions") or ():
        if each["type"] == kind:
            return each["status"], each.get("reason", ""), each.get("message", "")
    return "", "", ""


def condition(manifest: Object, kind: str) -> str:
    """Return the status of a condition, "" when there is none."""
    return said(manifest, kind)[0]
