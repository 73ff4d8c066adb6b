"""Parts of the pod runner that need no API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kube.claims import Claims
from tests.kube.client import Refused
from tests.kube.rewriting import Rewriting, own_hosts
from tests.kube.scheduling import Unschedulable, choose
from tests.kube.volumes import write_files

REWRITE = Rewriting(
    {"/etc/it": Path("/m/config"), "/etc/it/tls/": Path("/m/tls"), "/tmp": Path("/m/tmp")},
    {"0.0.0.0": "127.9.1.1", "a.nodes": "127.9.1.1", "a.nodes.x.svc": "127.9.1.1"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--config=/etc/it/node.json", "--config=/m/config/node.json"),
        ("/etc/it", "/m/config"),
        ("/etc/it/tls/ca.crt", "/m/tls/ca.crt"),
        ("/etc/it/tlsx", "/m/config/tlsx"),
        ("/etc/item", "/etc/item"),
        ("/usr/etc/it", "/usr/etc/it"),
        ("/var/tmp", "/var/tmp"),
        ("/tmp:/tmp/a", "/m/tmp:/m/tmp/a"),
        ('{"listen": "0.0.0.0:6690"}', '{"listen": "127.9.1.1:6690"}'),
        ("10.0.0.0.0", "10.0.0.0.0"),
        ("a.nodes.x.svc:1,a.nodes:2", "127.9.1.1:1,127.9.1.1:2"),
        ("aa.nodes a.nodes.y", "aa.nodes a.nodes.y"),
    ],
)
def test_only_whole_paths_and_names_are_replaced(text: str, said: str) -> None:
    assert REWRITE(text) == said


def test_a_pod_knows_itself_by_every_name_of_its_own() -> None:
    pod: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"hostname": "h", "subdomain": "nodes"}}
    hosts = own_hosts(pod, "x", "127.9.1.1")
    assert set(hosts.values()) == {"127.9.1.1"}
    assert {"0.0.0.0", "h.nodes", "h.nodes.x.svc", "h.nodes.x.svc.cluster.local"} <= hosts.keys()
    del pod["spec"]["subdomain"]
    assert own_hosts(pod, "x", "127.9.1.1").keys() == {"0.0.0.0", "[::]", "127.0.0.1"}


def test_files_are_replaced_all_at_once(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": b"1", "sub/b": b"1"})
    first = (tmp_path / "..data").resolve()
    write_files(tmp_path, {"a": b"1", "sub/b": b"1"})
    assert (tmp_path / "..data").resolve() == first, "nothing new, nothing moved"
    reader = tmp_path / "a"
    write_files(tmp_path, {"a": b"2", "c": b""})
    assert reader.read_bytes() == b"2"
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name[:2] != "..") == ["a", "c"]
    assert not first.exists()


def node(name: str, zone: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"zone": zone, "host": name}}, "spec": spec}


def placed(name: str, where: str = "", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"app": "it"}}, "spec": {"nodeName": where, **spec}}


NODES = [node("n1", "a"), node("n2", "b"), node("n3", "b")]


def test_the_emptiest_node_that_fits_is_chosen() -> None:
    assert choose(placed("new"), NODES, [placed("x", "n1")]) == "n2"
    assert choose(placed("new", nodeSelector={"zone": "a"}), NODES, [placed("x", "n1")]) == "n1"
    only_b = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": only_b}}
    assert choose(placed("new", affinity=affinity), NODES, [placed("x", "n2")]) == "n3"
    assert choose(placed("new"), NODES, [], [only_b]) == "n2"
    assert choose(placed("new"), [node("n1", "a", unschedulable=True), NODES[1]], []) == "n2"


def test_neighbours_that_must_be_apart_are() -> None:
    def apart(key: str) -> dict[str, Any]:
        term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "it"}}}
        return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    assert choose(placed("new", affinity=apart("host")), NODES, [placed("x", "n1"), placed("y", "n2")]) == "n3"
    with pytest.raises(Unschedulable, match="n3 has y"):
        choose(placed("new", affinity=apart("zone")), NODES, [placed("x", "n1"), placed("y", "n2")])
    leaving = placed("y", "n2")
    leaving["metadata"]["deletionTimestamp"] = "now"
    with pytest.raises(Unschedulable, match="n2 has y"):
        choose(placed("new", affinity=apart("zone")), NODES, [placed("x", "n1"), leaving])


class Volumes:
    """An API server on which a volume goes while somebody releases it."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.deleted: list[str] = []

    async def patch(self, resource: str, name: str, _changes: object) -> None:
        raise Refused({"code": self.code, "message": f"{resource} {name}"})

    async def delete(self, _resource: str, name: str) -> None:
        self.deleted.append(name)


async def test_a_volume_that_goes_at_this_moment_is_released(tmp_path: Path) -> None:
    gone = Volumes(404)
    await Claims(gone, tmp_path).release("pv-1")  # type: ignore[arg-type]  # all that it asks for
    assert gone.deleted == ["pv-1"]
    with pytest.raises(Refused):
        await Claims(Volumes(403), tmp_path).release("pv-1")  # type: ignore[arg-type]  # all that it asks for
