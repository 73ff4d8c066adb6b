"""`report`: one archive of what somebody else needs to see: objects, events, logs.  Secrets are neither read nor kept.

Stays out: what counts as secret (redaction).
"""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from tidemark_operator.kube.api import KubeError, KubeRefused
from tidemark_operator.resources.kinds import KINDS
from tidemark_operator.resources.labels import Label
from tidemark_wire.version import VERSION

from ..failures import CommandFailed
from ..output import note, table, write
from ..reconfigurations import status_of
from . import redaction
from .drawing import status_document
from .options import ClusterOption, Given
from .server import Server, on
from .state import State, name_of

Object = dict[str, Any]

OF_CLUSTER = tuple(name for name, row in KINDS.items() if not row.single)
OWNED = ("Pod", "PersistentVolumeClaim", "Service", "PodDisruptionBudget")
LOG_BYTES_MAX = 4 << 20
OPERATOR_LABELS = "app.kubernetes.io/name=tidemark,app.kubernetes.io/component=operator"


class Archive:
    """Fills one folder of a tar; every text goes through redaction."""

    def __init__(self, tar: tarfile.TarFile, folder: str) -> None:
        self._tar = tar
        self._folder = folder
        self.names: list[str] = []
        self.missing: list[str] = []

    def add(self, name: str, content: str) -> None:
        data = redaction.text(content).encode()
        entry = tarfile.TarInfo(f"{self._folder}/{name}")
        entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
        self._tar.addfile(entry, io.BytesIO(data))
        self.names.append(name)

    def add_objects(self, name: str, items: list[Object]) -> None:
        texts = [yaml.safe_dump(redaction.document(item), sort_keys=False, allow_unicode=True) for item in items]
        self.add(name, "---\n".join(texts))

    def lacks(self, what: str, error: Exception) -> None:
        self.missing.append(f"{what}: {error}")


async def collect(server: Server, item: Object, archive: Archive, lines: int, operator_namespace: str) -> None:
    """Fill an archive with what is there of a cluster; what may not be read is said in it."""
    name = name_of(item)
    archive.add_objects("objects/tidemarkclusters.yaml", [item])
    of_cluster: dict[str, list[Object]] = {}
    for kind in OF_CLUSTER:
        found = await _list(server, archive, kind)
        of_cluster[kind] = [each for each in found if each["spec"]["clusterRef"]["name"] == name]
        archive.add_objects(f"objects/{kind.lower()}s.yaml", of_cluster[kind])
    owned: dict[str, list[Object]] = {}
    for kind in OWNED:
        owned[kind] = await _list(server, archive, kind, f"{Label.CLUSTER}={name}")
        archive.add_objects(f"objects/{kind.lower()}s.yaml", owned[kind])
    names = {name, *(name_of(each) for found in (*of_cluster.values(), *owned.values()) for each in found)}
    events = [
        event for event in await _list(server, archive, "Event")
        if (event.get("regarding") or {}).get("name") in names or (event.get("related") or {}).get("name") in names]
    archive.add_objects("objects/events.yaml", sorted(events, key=_event_time))
    await _add_logs(server, archive, owned["Pod"], "logs", lines)
    if operator_namespace:
        there = Server(server.api, operator_namespace)
        await _add_logs(there, archive, await _list(there, archive, "Pod", OPERATOR_LABELS), "operator", lines)
    pods = {name_of(pod): pod for pod in owned["Pod"]}
    state = State(item, of_cluster["LogGroup"], of_cluster["Shard"], of_cluster["Reconfiguration"], pods or None)
    archive.add("status.yaml", yaml.safe_dump(status_document(state), sort_keys=False, allow_unicode=True))
    archive.add("versions.yaml", yaml.safe_dump({
        "client": VERSION, "kubernetes": await server.version(),
        "operator": status_of(item).get("operatorVersion", ""), "made": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}))
    if archive.missing:
        archive.add("not-read.txt", "\n".join(archive.missing) + "\n")


async def _list(server: Server, archive: Archive, kind: str, labels: str = "") -> list[Object]:
    try:
        return await server.list(kind, labels)
    except KubeRefused as refused:
        if refused.code != 403:
            raise
        archive.lacks(kind, refused)
        return []


async def _add_logs(server: Server, archive: Archive, pods: list[Object], folder: str, lines: int) -> None:
    async def one(pod: str, container: str, previous: bool) -> None:
        name = f"{folder}/{pod}.{container}{'.previous' if previous else ''}.log"
        try:
            archive.add(name, await server.log(
                pod, container, previous=previous, lines=lines, bytes_max=LOG_BYTES_MAX))
        except KubeError as error:
            archive.lacks(name, error)

    await asyncio.gather(*(
        one(name_of(pod), container["name"], previous) for pod in pods
        for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        for previous in (False, True) if not previous or _restarted(pod, container["name"])))


def _restarted(pod: Object, container: str) -> bool:
    return any(
        each["name"] == container and each.get("restartCount") for each in status_of(pod).get("containerStatuses", ()))


def _event_time(event: Object) -> str:
    return str((event.get("series") or {}).get("lastObservedTime") or event.get("eventTime")
               or event.get("deprecatedLastTimestamp") or "")


def report(
    given: Given,
    file: Annotated[
        Path | None,
        typer.Option("-f", "--file", metavar="FILE", help="Default: tidemark-CLUSTER-TIME.tar.gz.")] = None,
    lines: Annotated[int, typer.Option("--lines", min=1, max=100_000, help="Last lines of each log.")] = 5_000,
    operator_namespace: Annotated[
        str, typer.Option("--operator-namespace", metavar="NAME", help="Logs of the operator from there; '': none.")
    ] = "tidemark-system",
    cluster: ClusterOption = "",
) -> None:
    """Write objects, events and logs of a cluster into one archive. Secrets are not read."""
    content = io.BytesIO()

    async def work(server: Server) -> tuple[str, Archive]:
        item = await server.cluster(cluster)
        with tarfile.open(fileobj=content, mode="w:gz") as tar:
            archive = Archive(tar, f"tidemark-{name_of(item)}")
            await collect(server, item, archive, lines, operator_namespace)
        return name_of(item), archive

    name, archive = on(given, work)
    target = file or Path(f"tidemark-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    data = content.getvalue()
    try:
        with target.open("xb") as out:
            target.chmod(0o600)
            out.write(data)
    except FileExistsError:
        raise CommandFailed(f"{target} exists", "Choose another --file.", reason="EXISTS") from None
    for line in archive.missing:
        note(f"not read: {line}")
    document = {"file": str(target), "bytes": len(data), "entries": archive.names, "notRead": archive.missing}
    write(given.form, document, lambda: table(
        ["FILE", "#BYTES", "#ENTRIES", "#NOT READ"],
        [[str(target), len(data), len(archive.names), len(archive.missing)]]))
