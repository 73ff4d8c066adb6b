"""The volumes of a pod as directories: claims, emptyDir, ConfigMaps, Secrets and projections.

Files of ConfigMaps and Secrets are links through `..data`, which is swapped at once when they change: what watches its
certificates sees here what it sees under a kubelet.  Stays out: binding claims (`claims`), subPath of a single file.
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml

from .client import Kube, Object
from .rewriting import Rewriting

_generations = itertools.count(1)


class NotYet(Exception):
    """A volume cannot be mounted now; a kubelet would try again."""


class Volumes:
    """What one pod mounts."""

    def __init__(
        self, kube: Kube, pod: Object, directory: Path, claim_directory: Callable[[Object], Awaitable[Path]]
    ) -> None:
        self._kube = kube
        self._pod = pod
        self._directory = directory
        self._claim_directory = claim_directory
        self._volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        self._places: dict[str, Path] = {}
        self._token = ""
        self.kubeconfig: Path | None = None
        """How the pod reaches the API server, when it mounts a token of its service account."""

    def uses(self, kind: str, name: str) -> bool:
        """Whether a ConfigMap or Secret is mounted, so that its change is worth a look."""
        sources = [source for volume in self._volumes.values() for source in _sources(volume)]
        key, field = ("configMap", "name") if kind == "ConfigMap" else ("secret", "secretName")
        return any(source.get(key, {}).get(field, source.get(key, {}).get("name")) == name for source in sources)

    def paths(self, container: Object) -> dict[str, Path]:
        """The directory that stands for each mount path of a container."""
        found: dict[str, Path] = {}
        for mount in container.get("volumeMounts", ()):
            place = self._directory / "volumes" / mount["name"]
            place = self._places.get(mount["name"], place)
            found[mount["mountPath"]] = place / mount["subPath"] if mount.get("subPath") else place
        return found

    async def mount(self, rewriting: Callable[[], Rewriting]) -> None:
        """Make every directory, then fill those that have content.  Raises NotYet."""
        for name, volume in self._volumes.items():
            if claim := volume.get("persistentVolumeClaim"):
                found = await self._kube.find("persistentvolumeclaims", claim["claimName"], self._namespace)
                if found is None:
                    raise NotYet(f"persistentvolumeclaim {claim['claimName']!r} not found")
                self._places[name] = await self._claim_directory(found)
            elif "emptyDir" in volume or _sources(volume):
                self._places[name] = self._directory / "volumes" / name
            else:
                raise NotYet(f"the pod runner has no volumes like {json.dumps(volume)}")
            self._places[name].mkdir(parents=True, exist_ok=True)
        for container in (*self._pod["spec"].get("initContainers", ()), *self._pod["spec"]["containers"]):
            for path in self.paths(container).values():
                path.mkdir(parents=True, exist_ok=True)
        await self.refresh(rewriting())

    async def refresh(self, rewriting: Rewriting) -> None:
        """Write the content of ConfigMaps, Secrets and projections where it is new.  Raises NotYet."""
        for name, volume in self._volumes.items():
            if sources := _sources(volume):
                files: dict[str, bytes] = {}
                for source in sources:
                    files |= await self._files(source, rewriting)
                write_files(self._places[name], files)
                if "token" in files and self._token:
                    self._write_kubeconfig(self._places[name] / "token")

    @property
    def _namespace(self) -> str:
        return str(self._pod["metadata"]["namespace"])

    async def _files(self, source: Object, rewriting: Rewriting) -> dict[str, bytes]:
        if wanted := source.get("configMap"):
            found = await self._find("configmaps", wanted["name"], wanted)
            content = {key: rewriting(text).encode() for key, text in found.get("data", {}).items()}
            content |= {key: base64.b64decode(text) for key, text in found.get("binaryData", {}).items()}
            return _chosen(content, wanted)
        if wanted := source.get("secret"):
            found = await self._find("secrets", wanted.get("secretName") or wanted["name"], wanted)
            return _chosen({key: base64.b64decode(text) for key, text in found.get("data", {}).items()}, wanted)
        if wanted := source.get("downwardAPI"):
            return {
                item["path"]: field_of(self._pod, item["fieldRef"]["fieldPath"]).encode()
                for item in wanted.get("items", ())}
        wanted = source["serviceAccountToken"]
        return {wanted["path"]: (await self._service_account_token(wanted)).encode()}

    async def _find(self, resource: str, name: str, wanted: Object) -> Object:
        found = await self._kube.find(resource, name, self._namespace)
        if found is None and not wanted.get("optional"):
            raise NotYet(f"{resource.removesuffix('s')} {name!r} not found")
        return found or {}

    async def _service_account_token(self, wanted: Object) -> str:
        if not self._token:
            account = self._pod["spec"].get("serviceAccountName", "default")
            path = await self._kube.path("serviceaccounts/token", account, self._namespace)
            spec: Object = {"expirationSeconds": max(wanted.get("expirationSeconds", 3600), 600)}
            if wanted.get("audience"):
                spec["audiences"] = [wanted["audience"]]
            metadata = self._pod["metadata"]
            bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
            spec["boundObjectRef"] = bound
            answer = await self._kube.raw(
                "POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
            self._token = answer["status"]["token"]
        return self._token

    def _write_kubeconfig(self, token: Path) -> None:
        connection = self._kube.connection
        self.kubeconfig = self._directory / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "pod",
            "clusters": [{"name": "pod", "cluster": {
                "server": connection.url, "certificate-authority": connection.ca_file}}],
            "users": [{"name": "pod", "user": {"tokenFile": str(token)}}],
            "contexts": [{"name": "pod", "context": {
                "cluster": "pod", "user": "pod", "namespace": self._namespace}}],
        }))


def _sources(volume: Object) -> list[Object]:
    if projected := volume.get("projected"):
        return list(projected.get("sources", ()))
    return [volume] if volume.keys() & {"configMap", "secret", "downwardAPI"} else []


def _chosen(content: dict[str, bytes], wanted: Object) -> dict[str, bytes]:
    if "items" not in wanted:
        return content
    absent = [item["key"] for item in wanted["items"] if item["key"] not in content]
    if absent and not wanted.get("optional"):
        raise NotYet(f"references non-existent key: {absent[0]}")
    return {item["path"]: content[item["key"]] for item in wanted["items"] if item["key"] in content}


def write_files(directory: Path, files: dict[str, bytes]) -> None:
    """Replace the files of a directory all at once: a reader sees the old ones or the new ones."""
    current = directory / "..data"
    if current.exists() and _read(current) == files:
        return
    old = current.resolve() if current.exists() else None
    fresh = directory / f"..{next(_generations)}"
    for name, content in files.items():
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        (fresh / name).write_bytes(content)
    fresh.mkdir(exist_ok=True)
    link = directory / "..data_new"
    link.symlink_to(fresh.name)
    link.replace(current)
    wanted = {Path(name).parts[0] for name in files}
    for name in wanted:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(Path("..data") / name)
    for entry in directory.iterdir():
        if not entry.name.startswith("..") and entry.name not in wanted:
            entry.unlink()
    if old is not None:
        shutil.rmtree(old)


def _read(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*") if path.is_file()}


def field_of(pod: Object, path: str) -> str:
    """What a `fieldRef` stands for."""
    if "['" in path:
        parent, _, key = path.removesuffix("']").partition("['")
        return str(pod["metadata"].get(parent.removeprefix("metadata."), {}).get(key, ""))
    value: Any = pod
    for name in path.split("."):
        value = value.get(name, {})
    return value if isinstance(value, str) else ""
