"""Volumes: a folder on a machine's disk for every claim, made when the first pod of the claim is placed.

Such a volume stays on its machine, as a local disk does.  Stays out: placing pods (the scheduler).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from typing import Any

import aiohttp

from tests.kube.client import Kube, Refused

from .machines import Machine, on
from .places import IN_MACHINE

PROVISIONER = "tidemark.dev/folders"
LOOK_S = 0.5
Object = dict[str, Any]
CLASS: Object = {
    "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
    "metadata": {"name": "folders", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"}
SELECTED = "volume.kubernetes.io/selected-node"


async def provide(kube: Kube, machines: Sequence[Machine]) -> None:
    """Make volumes for claims and remove those whose claims are gone, until cancelled."""
    await kube.apply(CLASS)
    while True:
        try:
            for claim in (await kube.raw("GET", "/api/v1/persistentvolumeclaims"))["items"]:
                machine = claim["metadata"].get("annotations", {}).get(SELECTED)
                if claim["status"]["phase"] == "Pending" and machine:
                    await _provide(kube, claim, on(machines, machine))
            for volume in await kube.list("persistentvolumes"):
                if volume["status"]["phase"] == "Released":
                    await kube.delete("persistentvolumes", volume["metadata"]["name"])
                    shutil.rmtree(_machine_of(machines, volume).data / "volumes" / volume["metadata"]["name"])
        except (Refused, aiohttp.ClientError, OSError):
            pass  # the next look tries it again
        await asyncio.sleep(LOOK_S)


def _machine_of(machines: Sequence[Machine], volume: Object) -> Machine:
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    return on(machines, terms[0]["matchExpressions"][0]["values"][0])


async def _provide(kube: Kube, claim: Object, machine: Machine) -> None:
    metadata, spec = claim["metadata"], claim["spec"]
    name = f"pv-{metadata['uid']}"
    (machine.data / "volumes" / name).mkdir(exist_ok=True)
    await kube.apply({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]}, "accessModes": spec["accessModes"],
            "storageClassName": spec["storageClassName"], "persistentVolumeReclaimPolicy": "Delete",
            "local": {"path": f"{IN_MACHINE}/volumes/{name}"},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": metadata["name"],
                "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [machine.name]}]}]}}}})
