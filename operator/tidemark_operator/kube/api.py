"""KubeApi: requests to an API server; plain dicts in and out, every failure typed.

Stays out: caches, retries, what is asked for.  Only this module and `handlers` know the client library.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from ..resources import API_VERSION, KINDS
from .health import REQUESTS

Object = dict[str, Any]

REQUEST_S = 15
WATCH_S, WATCH_SILENCE_S = 300, 90
"""A watch is asked to end after the first; bookmarks come each minute, so one that is silent for the second is dead."""

EVERYWHERE = ""
"""As a namespace: all of them, to list and to watch; or none, where a kind has none."""

FIELD_MANAGER = "tidemark-operator"
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
JSON, APPLY, MERGE = "application/json", "application/apply-patch+yaml", "application/merge-patch+json"


class KubeError(Exception):
    """The API server did not do what was asked."""


class KubeAway(KubeError):
    """It was not reached, or broke off: what was asked may have happened or not."""


class KubeRefused(KubeError):
    """It said no, by `code` as HTTP has it and the `reason` of its Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


@dataclass(frozen=True, slots=True)
class Kind:
    """Where objects of one kind are served."""

    api_version: str
    plural: str
    kind: str

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the path; no namespace is that of what belongs to none, and of all namespaces."""
        root = "/apis" if "/" in self.api_version else "/api"
        inside = ["namespaces", quote(namespace, safe="")] if namespace else []
        parts = [root, self.api_version, *inside, self.plural]
        return "/".join([*parts, *(quote(part, safe="") for part in (name, subresource) if part)])


PODS = Kind("v1", "pods", "Pod")
CLAIMS = Kind("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
SERVICES = Kind("v1", "services", "Service")
SECRETS = Kind("v1", "secrets", "Secret")
BUDGETS = Kind("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")
EVENTS = Kind("events.k8s.io/v1", "events", "Event")
NETWORK_POLICIES = Kind("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
MONITORS = Kind("monitoring.coreos.com/v1", "podmonitors", "PodMonitor")
"""Of the Prometheus operator; a server may not know them."""

MACHINES = Kind("v1", "nodes", "Node")
"""Kubernetes' own nodes: "node" alone is one of ours, everywhere in this room."""

CERTIFICATES = Kind("cert-manager.io/v1", "certificates", "Certificate")
"""Of cert-manager; a server may not know them."""

VOLUMES = Kind("v1", "persistentvolumes", "PersistentVolume")
STORAGE_CLASSES = Kind("storage.k8s.io/v1", "storageclasses", "StorageClass")
CUSTOM = {name: Kind(API_VERSION, row.names.plural, name) for name, row in KINDS.items()}
ALL = {kind.kind: kind for kind in (
    PODS, CLAIMS, SERVICES, SECRETS, BUDGETS, NETWORK_POLICIES, MONITORS, CERTIFICATES, EVENTS, *CUSTOM.values())}


_UNUSABLE = (config.ConfigException, yaml.YAMLError, KeyError, TypeError, OSError)
"""What the client library raises of a kubeconfig, or of a pod without an account."""


async def load_configuration(kubeconfig: Path | None) -> Configuration:
    """Return how the API server is reached: by a file, else as a pod.  Raises ValueError."""
    configuration = Configuration()
    try:
        if kubeconfig is not None:
            await config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
    except _UNUSABLE as error:
        raise _no_way(error) from error
    return configuration


def _no_way(error: Exception) -> ValueError:
    return ValueError(f"no way to the API server: {' '.join(str(error).split())}")  # in one line


def own_namespace() -> str:
    """Return the namespace of the pod that this runs in.  Raises FileNotFoundError outside of one."""
    return OWN_NAMESPACE.read_text(encoding="utf-8").strip()


async def load_user_configuration(kubeconfig: str, context: str) -> tuple[Configuration, str]:
    """Return how a person's kubectl reaches the API server, and the namespace it is set to; in a pod, that of the pod.

    `kubeconfig` is a file or several with colons between, empty: as kubectl finds it.  Raises ValueError.
    """
    configuration = Configuration()
    files = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    found = _existing(files.split(os.pathsep))
    try:
        if not found and not kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=configuration)
            return configuration, own_namespace()
        if not found:
            raise ValueError(f"no kubeconfig: there is no file {files}")
        loader = await config.load_kube_config(
            config_file=os.pathsep.join(found), context=context or None, client_configuration=configuration,
            persist_config=False)
        return configuration, str(loader.current_context["context"].get("namespace") or "default")
    except _UNUSABLE as error:
        raise _no_way(error) from error


def _existing(files: list[str]) -> list[str]:
    return [file for file in files if os.path.isfile(file)]


class KubeApi:
    """One connection pool to an API server."""

    def __init__(self, configuration: Configuration) -> None:
        self._client = ApiClient(configuration)

    async def close(self) -> None:
        await self._client.close()

    async def list(self, kind: Kind, namespace: str, labels: str = "") -> tuple[list[Object], str]:
        """Return all objects, and the version from which a watch goes on."""
        found = await self._json("GET", kind.path(namespace), query={"labelSelector": labels} if labels else {})
        items = [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in found["items"]]
        return items, found["metadata"]["resourceVersion"]

    async def watch(
        self, kind: Kind, namespace: str, since: str, labels: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object), bookmarks too; ends when the server ends it.  Refused with 410 when `since` is gone."""
        query = {"watch": "true", "resourceVersion": since, "allowWatchBookmarks": "true",
                 "timeoutSeconds": str(WATCH_S), **({"labelSelector": labels} if labels else {})}
        limits = aiohttp.ClientTimeout(total=None, connect=REQUEST_S, sock_read=WATCH_SILENCE_S)
        response = await self._request("GET", kind.path(namespace), query=query, limits=limits)
        rest = b""
        try:
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _refusal(event["object"].get("code", 0), event["object"])
                    yield event["type"], event["object"]
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            raise KubeAway(str(error) or type(error).__name__) from error
        finally:
            response.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return one object as it is now, None where there is none."""
        try:
            return await self._json("GET", kind.path(namespace, name))
        except KubeRefused as refused:
            if refused.code != 404:
                raise
            return None

    async def text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """Return what is not an object: logs, versions."""
        return (await self._content("GET", path, query=query)).decode(errors="replace")

    async def create(self, manifest: Object, manager: str = FIELD_MANAGER, *, dry_run: bool = False) -> Object:
        """Create; refused with 409 when the name is taken."""
        kind = ALL[manifest["kind"]]
        query = {"fieldManager": manager, **({"dryRun": "All"} if dry_run else {})}
        return await self._json("POST", kind.path(manifest["metadata"]["namespace"]), manifest, query)

    async def apply(self, manifest: Object, subresource: str = "", manager: str = FIELD_MANAGER) -> Object:
        """Server-side apply as the owner of the fields given; with a uid in it, only to that object."""
        metadata = manifest["metadata"]
        path = ALL[manifest["kind"]].path(metadata["namespace"], metadata["name"], subresource)
        return await self._json("PATCH", path, manifest, {"fieldManager": manager, "force": "true"}, APPLY)

    async def merge(
        self, kind: Kind, namespace: str, name: str, changes: Object, manager: str = FIELD_MANAGER
    ) -> Object:
        """JSON merge patch, for single fields."""
        query = {"fieldManager": manager}
        return await self._json("PATCH", kind.path(namespace, name), changes, query, MERGE)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str = "", *, force: bool = False) -> None:
        """Delete, with a uid only that object; absent or replaced is fine.  With `force` nobody is waited for."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if force:
            options["gracePeriodSeconds"] = 0
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._json("DELETE", kind.path(namespace, name), options)
        except KubeRefused as refused:
            if refused.code != 404 and not (uid and refused.code == 409):
                raise

    async def _json(
        self, method: str, path: str, body: Object | None = None, query: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> Object:
        return dict(json.loads(await self._content(method, path, body, query, content_type)))

    async def _content(
        self, method: str, path: str, body: Object | None = None, query: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> bytes:
        limits = aiohttp.ClientTimeout(total=REQUEST_S)
        response = await self._request(method, path, body, query, content_type, limits)
        try:
            return await response.read()
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            raise KubeAway(str(error) or type(error).__name__) from error

    async def _request(
        self, method: str, path: str, body: Object | None = None, query: Mapping[str, str] | None = None,
        content_type: str = JSON, limits: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        request = await self._client.param_serialize(
            method, path, query_params=list((query or {}).items()),
            header_params={"Content-Type": content_type, "Accept": JSON}, body=body,
            auth_settings=["BearerToken"])  # else a pod's token would not be sent
        try:
            answer = await self._client.call_api(*request, _request_timeout=limits)
            code = answer.status
            REQUESTS.labels(method, code).inc()
            if 200 <= code < 300:
                response: aiohttp.ClientResponse = answer.response
                return response
            text = (await answer.read()).decode(errors="replace")
        except (TimeoutError, OSError, aiohttp.ClientError) as error:
            REQUESTS.labels(method, "away").inc()
            raise KubeAway(f"{method} {path}: {str(error) or type(error).__name__}") from error
        if code == 429 or code >= 500:
            raise KubeAway(f"{method} {path}: {code} {text[:200]}")
        try:
            status = json.loads(text)
        except ValueError:
            status = {"message": text}
        raise _refusal(code, status)


def _refusal(code: int, status: Mapping[str, Any]) -> KubeRefused:
    return KubeRefused(code, str(status.get("reason", "")), str(status.get("message", status)))
