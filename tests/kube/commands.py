"""What a container is told: its command and its environment, in terms of this machine.

Stays out: running it (`containers`).
"""

from __future__ import annotations

import base64
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from tidemark_operator.resources import quantity_bytes

from . import probes
from .client import Kube, Object, Refused
from .rewriting import Rewriting
from .volumes import Volumes, field_of

IMAGES: Mapping[str, Sequence[str]] = {
    "tidemark-node": (sys.executable, "-m", "tidemark_node"),
    "tidemark-operator": (sys.executable, "-m", "tidemark_operator"),
    "python": (sys.executable,),
}
"""What the entry point of an image is here, by the last part of its repository."""


class CannotStart(Exception):
    """The container cannot run now; `reason` is what a kubelet would call it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class Pod:
    """What the containers of a pod share."""

    kube: Kube
    manifest: Object
    address: str
    host_address: str
    directory: Path
    volumes: Volumes
    hosts: Mapping[str, str]
    images: Mapping[str, Sequence[str]]
    missing_images: set[str]
    changed: Callable[[], None]

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    def rewriting(self, container: Object | None = None) -> Rewriting:
        """By the mounts of one container, or of all for what they share."""
        spec = self.manifest["spec"]
        containers = [container] if container else [*spec.get("initContainers", ()), *spec["containers"]]
        paths = {path: place for each in containers for path, place in self.volumes.paths(each).items()}
        return Rewriting(paths, self.hosts)


def command_of(pod: Pod, spec: Object, environment: Mapping[str, str], rewriting: Rewriting) -> list[str]:
    """Return the command line of a container.  Raises CannotStart."""
    image = spec["image"]
    if image in pod.missing_images:
        raise CannotStart("ImagePullBackOff", f"Back-off pulling image {image!r}")
    repository = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    if spec.get("command"):
        return local_command([*spec["command"], *spec.get("args", ())], environment, rewriting)
    if repository in pod.images:
        # An image's own command is one of this machine already: a checkout may lie where a pod mounts something.
        return [*pod.images[repository], *local_command(spec.get("args", ()), environment, rewriting)]
    raise CannotStart("ErrImagePull", f"the pod runner does not know image {image!r}")


async def environment_of(pod: Pod, spec: Object) -> dict[str, str]:
    """Return the environment of a container.  Raises CannotStart."""
    rewriting = pod.rewriting(spec)
    told: dict[str, str] = {}
    for source in spec.get("envFrom", ()):
        data = await _data(pod, source.get("configMapRef") or source["secretRef"], "configMapRef" in source)
        told |= {source.get("prefix", "") + key: rewriting(value) for key, value in data.items()}
    for variable in spec.get("env", ()):
        if "valueFrom" in variable:
            value = await _value_from(pod, spec, variable["valueFrom"])
            if value is None:
                continue
        else:
            value = _expand(variable.get("value", ""), told)
        told[variable["name"]] = rewriting(value)
    if pod.volumes.kubeconfig is not None:
        told.setdefault("KUBECONFIG", str(pod.volumes.kubeconfig))
    return probes.base_environment(pod.directory, pod.manifest["spec"].get("hostname") or pod.name) | told


async def _value_from(pod: Pod, spec: Object, source: Object) -> str | None:
    if wanted := source.get("fieldRef"):
        known = {"status.podIP": pod.address, "status.podIPs": pod.address, "status.hostIP": pod.host_address}
        return known.get(wanted["fieldPath"]) or field_of(pod.manifest, wanted["fieldPath"])
    if wanted := source.get("resourceFieldRef"):
        return _resource(spec, wanted["resource"])
    is_config_map = "configMapKeyRef" in source
    wanted = source["configMapKeyRef" if is_config_map else "secretKeyRef"]
    data = await _data(pod, wanted, is_config_map)
    if wanted["key"] not in data and not wanted.get("optional"):
        raise CannotStart("CreateContainerConfigError", f"couldn't find key {wanted['key']} in {wanted['name']}")
    return data.get(wanted["key"])


async def _data(pod: Pod, wanted: Object, is_config_map: bool) -> dict[str, str]:
    resource = "configmaps" if is_config_map else "secrets"
    try:
        found = await pod.kube.find(resource, wanted["name"])
    except (Refused, OSError, aiohttp.ClientError) as problem:
        raise CannotStart("CreateContainerConfigError", str(problem)) from problem
    if found is None and not wanted.get("optional"):
        raise CannotStart("CreateContainerConfigError", f"{resource.removesuffix('s')} {wanted['name']!r} not found")
    data = (found or {}).get("data", {})
    return data if is_config_map else {key: base64.b64decode(text).decode() for key, text in data.items()}


def local_command(command: Sequence[str], environment: Mapping[str, str], rewriting: Rewriting) -> list[str]:
    """Say a command line in terms of this machine."""
    said = [rewriting(_expand(part, environment)) for part in command]
    if said and said[0] in ("python", "python3"):
        said[0] = sys.executable
    return said


def _expand(text: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` stands for a variable, `$$(NAME)` for itself."""

    def replaced(found: re.Match[str]) -> str:
        if found[0].startswith("$$"):
            return found[0][1:]
        return environment.get(found[1], found[0])

    return re.sub(r"\$?\$\(([A-Za-z_][\w.-]*)\)", replaced, text)


def _resource(container: Object, name: str) -> str:
    kind, _, resource = name.partition(".")
    value = container.get("resources", {}).get(kind, {}).get(resource, "0")
    if resource == "cpu":
        cores = float(value[:-1]) / 1000 if str(value).endswith("m") else float(value)
        return str(math.ceil(cores))
    return str(quantity_bytes(str(value)))
