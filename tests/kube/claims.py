"""Volume claims become directories: bound when their first pod is placed, grown when asked, removed with the claim.

Two storage classes stand for the two kinds of disks: `network` follows its pod to any node and can grow; `local` stays
on the node where it was made and cannot.  Stays out: mounting (`volumes`).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from .client import Kube, Object, Refused

NETWORK, LOCAL = "network", "local"
NODE_LABEL = "kubernetes.io/hostname"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


async def install_classes(kube: Kube) -> None:
    """Create the two storage classes; `network` is the default one."""
    for name, grows in ((NETWORK, True), (LOCAL, False)):
        await kube.apply({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name, "annotations": {_DEFAULT_CLASS: str(name == NETWORK).lower()}},
            "provisioner": f"tidemark.dev/test-{name}", "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": grows, "reclaimPolicy": "Delete"})


class Claims:
    """The claims of one namespace and the directories behind them."""

    def __init__(self, kube: Kube, directory: Path) -> None:
        self._kube = kube
        self._directory = directory

    async def directory(self, claim: Object, node: str) -> Path:
        """Return where a claim's files are, for a pod on that node; binds the claim if nobody did."""
        if claim.get("status", {}).get("phase") != "Bound":
            await self._bind(claim, node)
        return self._directory / self._volume_name(claim)

    @staticmethod
    def _volume_name(claim: Object) -> str:
        return f"pv-{claim['metadata']['uid']}"

    async def of(self, pod: Object) -> list[Object] | None:
        """Return the claims that a pod mounts, None while one of them is missing."""
        found: list[Object] = []
        for volume in pod["spec"].get("volumes", ()):
            if wanted := volume.get("persistentVolumeClaim"):
                claim = await self._kube.find("persistentvolumeclaims", wanted["claimName"])
                if claim is None or "deletionTimestamp" in claim["metadata"]:
                    return None
                found.append(claim)
        return found

    async def selectors(self, claims: list[Object]) -> list[Object]:
        """Return what the volumes behind bound claims ask of a node."""
        found: list[Object] = []
        for claim in claims:
            if claim["spec"].get("volumeName"):
                volume = await self._kube.get("persistentvolumes", claim["spec"]["volumeName"])
                required = volume["spec"].get("nodeAffinity", {}).get("required")
                found += [required] if required else []
        return found

    async def _bind(self, claim: Object, node: str) -> None:
        name = self._volume_name(claim)
        class_name = claim["spec"].get("storageClassName", "")
        place = self._directory / name
        place.mkdir(parents=True, exist_ok=True)
        metadata, spec = claim["metadata"], claim["spec"]
        volume_spec: Object = {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"], "storageClassName": class_name,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": metadata["name"],
                "namespace": metadata["namespace"], "uid": metadata["uid"]},
        }
        if class_name == LOCAL:
            volume_spec["local"] = {"path": str(place)}
            volume_spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": NODE_LABEL, "operator": "In", "values": [node]}]}]}}
        else:
            volume_spec["hostPath"] = {"path": str(place)}
        await self._kube.apply(
            {"apiVersion": "v1", "kind": "PersistentVolume",
             "metadata": {"name": name, "labels": {"tidemark.dev/test-namespace": self._kube.namespace}},
             "spec": volume_spec}, manager="pod-runner")
        await self._kube.patch("persistentvolumes/status", name, {"status": {"phase": "Bound"}})
        await self._kube.patch("persistentvolumeclaims", metadata["name"], {"spec": {"volumeName": name}})
        await self._report(claim, spec["resources"]["requests"]["storage"])

    async def _report(self, claim: Object, storage: str) -> None:
        await self._kube.patch("persistentvolumeclaims/status", claim["metadata"]["name"], {"status": {
            "phase": "Bound", "accessModes": claim["spec"]["accessModes"], "capacity": {"storage": storage}}})

    async def changed(self, claim: Object) -> None:
        """Grow the volume when a bound claim asks for more; admission has made sure that its class can."""
        wanted = claim["spec"]["resources"]["requests"]["storage"]
        status = claim.get("status", {})
        if status.get("phase") == "Bound" and status.get("capacity", {}).get("storage") != wanted:
            volume = {"spec": {"capacity": {"storage": wanted}}}
            await self._kube.patch("persistentvolumes", claim["spec"]["volumeName"], volume)
            await self._report(claim, wanted)

    async def removed(self, claim: Object) -> None:
        """Remove the volume and its files."""
        name = self._volume_name(claim)
        await self.release(name)
        shutil.rmtree(self._directory / name, ignore_errors=True)

    async def release(self, name: str) -> None:
        """Remove a volume; one that is gone, or goes at this moment, is fine."""
        try:
            await self._kube.patch("persistentvolumes/status", name, {"status": {"phase": "Released"}})
        except Refused as refused:
            if refused.code != 404:
                raise
        await self._kube.delete("persistentvolumes", name)
