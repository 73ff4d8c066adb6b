"""Pods become processes: what they are told, their probes, their end, their disks, the nodes they are on."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.kube.claims import LOCAL
from tests.kube.client import Kube, Object, Refused, condition
from tests.kube.control_plane import ControlPlane
from tests.kube.pod_runner import ZONE_LABEL, PodRunner
from tests.waiting import until

pytestmark = pytest.mark.apiserver

SERVE = ["python", "-m", "http.server", "--bind", "0.0.0.0", "8080", "--directory", "/srv"]
FAST = {"periodSeconds": 1, "failureThreshold": 1}


def pod(name: str, container: Object | None = None, **spec: Any) -> Object:
    labels = {"app": "it", "name": name}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "python:3", "args": ["-c", "import time; time.sleep(1000)"],
                            **(container or {})}],
            **spec,
        },
    }


def script(text: str) -> Object:
    return {"args": ["-c", text]}


def ready(found: Object) -> bool:
    return condition(found, "Ready") == "True"


def phase(wanted: str) -> Callable[[Object], bool]:
    return lambda found: found.get("status", {}).get("phase") == wanted


def main_state(found: Object) -> Object:
    statuses = found.get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0])


def waits_for(reason: str) -> Callable[[Object], bool]:
    return lambda found: main_state(found).get("state", {}).get("waiting", {}).get("reason") == reason


def claim(name: str, storage_class: str | None = None, size: str = "1Gi") -> Object:
    spec: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if storage_class:
        spec["storageClassName"] = storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def on_claim(name: str, container: Object | None = None, claim_name: str = "data", **spec: Any) -> Object:
    return pod(
        name, {"volumeMounts": [{"name": "data", "mountPath": "/data"}], **(container or {})},
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}], **spec)


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


# --- a process, its ports and its files


async def test_pods_serve_on_the_same_port_without_meeting(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "pages"}, "data": {"index.html": "hello"}})
    container = {
        "command": SERVE, "args": [], "ports": [{"name": "http", "containerPort": 8080}],
        "volumeMounts": [{"name": "pages", "mountPath": "/srv"}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, **FAST}}
    volumes = [{"name": "pages", "configMap": {"name": "pages"}}]
    for name in ("one", "two"):
        await kube.create(pod(name, container, volumes=volumes))
    found = [await kube.wait("pods", name, ready) for name in ("one", "two")]
    addresses = [each["status"]["podIP"] for each in found]
    assert len(set(addresses)) == 2
    for address in addresses:
        assert await asyncio.to_thread(fetch, f"http://{address}:8080/") == b"hello"
    assert len({each["spec"]["nodeName"] for each in found}) == 2, "the emptier node is taken"


async def test_what_a_container_is_told(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "secret"}, "stringData": {"password": "s3cret"}})
    await kube.create({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config"},
        "data": {"node.json": '{"data": "/var/lib/it/data", "listen": "0.0.0.0:1"}'}})
    tell = (
        "import json, os, sys; from pathlib import Path\n"
        "print(json.dumps({'args': sys.argv[1:], 'env': dict(os.environ),"
        " 'config': Path(os.environ['CONFIG']).read_text(),"
        " 'secret': Path(os.environ['SECRETS'], 'password').read_text()}))")
    container = {
        "args": ["-c", tell, "--data=/var/lib/it/data", "--temporary=/tmp/x", "$(POD)", "$$(POD)", "$(UNKNOWN)",
                 "--listen=0.0.0.0:6690", "--advertise=told.nodes.$(SPACE).svc:6690", "/var/lib/item"],
        "env": [
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "SPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "password"}}},
            {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
            {"name": "CONFIG", "value": "/etc/it/node.json"}, {"name": "SECRETS", "value": "/etc/it/tls"},
        ],
        "resources": {"limits": {"memory": "64Mi"}},
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/it"}, {"name": "config", "mountPath": "/etc/it"},
            {"name": "secret", "mountPath": "/etc/it/tls"}],
    }
    await kube.create(pod(
        "told", container, restartPolicy="Never", hostname="told", subdomain="nodes",
        volumes=[{"name": "data", "emptyDir": {}}, {"name": "config", "configMap": {"name": "config"}},
                 {"name": "secret", "secret": {"secretName": "secret"}}]))
    done = await kube.wait("pods", "told", phase("Succeeded"))
    said = json.loads(pod_runner.log("told"))
    data, address = pod_runner.mounted("told", "/var/lib/it"), done["status"]["podIP"]
    assert said["args"] == [
        f"--data={data}/data", "--temporary=/tmp/x", "told", "$(POD)", "$(UNKNOWN)", f"--listen={address}:6690",
        f"--advertise={address}:6690", "/var/lib/item"]
    assert json.loads(said["config"]) == {"data": f"{data}/data", "listen": f"{address}:1"}
    assert said["secret"] == "s3cret"
    told = said["env"]
    assert (told["POD"], told["SPACE"], told["IP"], told["LABEL"]) == ("told", kube.namespace, address, "it")
    assert (told["NODE"], told["PASSWORD"]) == (done["spec"]["nodeName"], "s3cret")
    assert told["MEMORY"] == str(64 << 20)


async def test_a_changed_secret_reaches_the_files_at_once(kube: Kube, pod_runner: PodRunner) -> None:
    data = {"a": base64.b64encode(b"1").decode(), "b": base64.b64encode(b"1").decode()}
    await kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pair"}, "data": data})
    await kube.create(pod(
        "reader", {"volumeMounts": [{"name": "pair", "mountPath": "/pair"}]},
        volumes=[{"name": "pair", "secret": {"secretName": "pair"}}]))
    await kube.wait("pods", "reader", ready)
    place = pod_runner.mounted("reader", "/pair")
    assert (place / "a").read_text() == (place / "b").read_text() == "1"
    await kube.patch("secrets", "pair", {"data": {"a": base64.b64encode(b"2").decode(), "b": None}})
    await until(lambda: sorted(entry.name for entry in place.iterdir() if entry.name[0] != ".") == ["a"])
    assert (place / "a").read_text() == "2"
    assert (place / "a").resolve().parent == (place / "..data").resolve()


async def test_a_missing_secret_is_waited_for(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create(pod(
        "waiting", {"volumeMounts": [{"name": "late", "mountPath": "/late"}]},
        volumes=[{"name": "late", "secret": {"secretName": "late"}}]))
    found = await kube.wait("pods", "waiting", waits_for("ContainerCreating"))
    assert found["status"]["phase"] == "Pending"
    await kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}})
    await kube.wait("pods", "waiting", ready)


async def test_a_pod_reaches_the_api_as_its_service_account(kube: Kube, pod_runner: PodRunner) -> None:
    ask = (
        "import asyncio\n"
        "from kubernetes.aio import client, config\n"
        "async def main():\n"
        "    await config.load_kube_config()\n"
        "    async with client.ApiClient() as api:\n"
        "        review = await client.AuthenticationV1Api(api).create_self_subject_review("
        "{'apiVersion': 'authentication.k8s.io/v1', 'kind': 'SelfSubjectReview'})\n"
        "        print(review.status.user_info.username)\n"
        "asyncio.run(main())")
    await kube.create(pod("asker", script(ask), restartPolicy="Never", automountServiceAccountToken=True))
    await kube.wait("pods", "asker", lambda found: found.get("status", {}).get("phase") in ("Succeeded", "Failed"))
    assert pod_runner.log("asker").strip() == f"system:serviceaccount:{kube.namespace}:default"


# --- probes, restarts, the end


async def test_readiness_follows_its_probe_and_the_gates(kube: Kube, pod_runner: PodRunner) -> None:
    probe = {"exec": {"command": ["test", "-e", "/state/ready"]}, **FAST}
    await kube.create(pod(
        "gated", {"readinessProbe": probe, "volumeMounts": [{"name": "state", "mountPath": "/state"}]},
        volumes=[{"name": "state", "emptyDir": {}}], readinessGates=[{"conditionType": "tidemark.dev/synced"}]))
    await kube.wait("pods", "gated", phase("Running"))
    assert condition(await kube.get("pods", "gated"), "ContainersReady") == "False"
    file = pod_runner.mounted("gated", "/state") / "ready"
    file.touch()
    found = await kube.wait("pods", "gated", lambda found: condition(found, "ContainersReady") == "True")
    assert not ready(found), "the gate is still closed"
    await kube.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gated"}, "status": {"conditions": [
            {"type": "tidemark.dev/synced", "status": "True"}]}}, subresource="status", manager="operator")
    await kube.wait("pods", "gated", ready)
    file.unlink()
    found = await kube.wait("pods", "gated", lambda found: not ready(found))
    assert condition(found, "tidemark.dev/synced") == "True", "what others wrote stays"


async def test_a_container_that_ends_is_started_again(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create(pod("crash"))
    before = await kube.wait("pods", "crash", ready)
    pod_runner.container("crash").kill()
    after = await kube.wait("pods", "crash", lambda found: main_state(found).get("restartCount") == 1 and ready(found))
    assert main_state(after)["lastState"]["terminated"]["exitCode"] == 137
    assert after["status"]["podIP"] == before["status"]["podIP"]


async def test_a_container_that_keeps_ending_backs_off(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create(pod("broken", script("raise SystemExit(3)")))
    found = await kube.wait("pods", "broken", lambda found: main_state(found).get("restartCount", 0) >= 3)
    assert not ready(found)
    await kube.wait("pods", "broken", waits_for("CrashLoopBackOff"))


async def test_what_ends_by_itself_ends_the_pod(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create(pod("good", script("pass"), restartPolicy="OnFailure"))
    await kube.create(pod("bad", script("raise SystemExit(3)"), restartPolicy="Never"))
    await kube.wait("pods", "good", phase("Succeeded"))
    found = await kube.wait("pods", "bad", phase("Failed"))
    assert main_state(found)["state"]["terminated"]["exitCode"] == 3


async def test_a_failing_liveness_probe_restarts_after_a_slow_start(kube: Kube, pod_runner: PodRunner) -> None:
    container = {
        "volumeMounts": [{"name": "state", "mountPath": "/state"}],
        "startupProbe": {"exec": {"command": ["test", "-e", "/state/up"]}, "periodSeconds": 1, "failureThreshold": 60},
        "livenessProbe": {"exec": {"command": ["test", "-e", "/state/alive"]}, **FAST}}
    await kube.create(pod("moody", container, volumes=[{"name": "state", "emptyDir": {}}]))
    await kube.wait("pods", "moody", phase("Running"))
    state = pod_runner.mounted("moody", "/state")
    assert main_state(await kube.get("pods", "moody"))["started"] is False
    (state / "alive").touch()
    (state / "up").touch()
    found = await kube.wait("pods", "moody", lambda found: main_state(found).get("started"))
    assert main_state(found)["restartCount"] == 0
    (state / "alive").unlink()
    await kube.wait("pods", "moody", lambda found: main_state(found)["restartCount"] == 1)


async def test_init_containers_come_first(kube: Kube, pod_runner: PodRunner) -> None:
    mounts = [{"name": "state", "mountPath": "/state"}]
    write = ["-c", "open('/state/it', 'w').write('made')"]
    await kube.create(pod(
        "prepared", {"args": ["-c", "print(open('/state/it').read())"], "volumeMounts": mounts},
        initContainers=[{"name": "init", "image": "python:3", "args": write, "volumeMounts": mounts}],
        volumes=[{"name": "state", "emptyDir": {}}], restartPolicy="Never"))
    await kube.wait("pods", "prepared", phase("Succeeded"))
    assert pod_runner.log("prepared") == "made\n"


STUBBORN = (
    "import signal, time\n"
    "def told(*_):\n"
    "    print('told', flush=True)\n"
    "    {then}\n"
    "signal.signal(signal.SIGTERM, told)\n"
    "print('up', flush=True)\n"
    "while True: time.sleep(0.05)\n")


async def wait_log(pod_runner: PodRunner, name: str, text: str) -> None:
    await until(lambda: text in pod_runner.log(name), f"{name} says {text!r}")


async def test_a_deleted_pod_has_its_grace(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create(pod("graceful", script(STUBBORN.format(then="raise SystemExit(0)"))))
    await wait_ready_and_up(kube, pod_runner, "graceful")
    log_file = pod_runner.container("graceful").log_file
    await kube.delete("pods", "graceful")
    await kube.wait_gone("pods", "graceful")
    assert log_file.read_text() == "up\ntold\n"


async def test_a_deleted_pod_that_will_not_end_is_killed_after_its_grace(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create(pod("stubborn", script(STUBBORN.format(then="pass")), terminationGracePeriodSeconds=1))
    await wait_ready_and_up(kube, pod_runner, "stubborn")
    container = pod_runner.container("stubborn")
    await kube.delete("pods", "stubborn")
    found = await kube.get("pods", "stubborn")
    assert "deletionTimestamp" in found["metadata"], "it is asked first"
    await kube.wait_gone("pods", "stubborn")
    assert container.process is not None
    assert container.process.returncode == -9
    assert "told" in container.log_file.read_text()


async def wait_ready_and_up(kube: Kube, pod_runner: PodRunner, name: str) -> None:
    await kube.wait("pods", name, ready)
    await wait_log(pod_runner, name, "up")


async def test_an_image_that_cannot_be_pulled_is_tried_again(kube: Kube, pod_runner: PodRunner) -> None:
    pod_runner.missing_images.add("python:4")
    await kube.create(pod("new", {"image": "python:4"}))
    await kube.wait("pods", "new", waits_for("ImagePullBackOff"))
    pod_runner.missing_images.clear()
    await kube.wait("pods", "new", ready)


# --- disruption, nodes, disks


async def test_an_eviction_obeys_the_budget(kube: Kube, pod_runner: PodRunner) -> None:
    for name in ("one", "two"):
        await kube.create(pod(name, readinessGates=[{"conditionType": "tidemark.dev/synced"}]))
        await kube.wait("pods", name, lambda found: condition(found, "ContainersReady") == "True")
    await kube.create({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "budget"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "it"}},
                 "unhealthyPodEvictionPolicy": "IfHealthyBudget"}})
    synced: Object = {"status": {"conditions": [{"type": "tidemark.dev/synced", "status": "True"}]}}

    async def allowed(count: int) -> None:
        await kube.wait("poddisruptionbudgets.policy", "budget", lambda found: (
            found.get("status", {}).get("disruptionsAllowed") == count and found["status"]["expectedPods"] == 2))

    await kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, **synced}, subresource="status")
    await kube.wait("pods", "one", ready)
    await allowed(0)
    with pytest.raises(Refused) as refused:
        await kube.evict("one")
    assert refused.value.code == 429
    await kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "two"}, **synced}, subresource="status")
    await allowed(1)
    await kube.evict("one")
    await kube.wait_gone("pods", "one")


async def test_pods_go_where_zones_and_neighbours_allow(kube: Kube, pod_runner: PodRunner) -> None:
    def in_zone(zone: str) -> Object:
        terms = [{"matchExpressions": [{"key": ZONE_LABEL, "operator": "In", "values": [zone]}]}]
        apart = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "it"}}}]
        return {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}}

    await kube.create(pod("first", affinity=in_zone("zone-b")))
    found = await kube.wait("pods", "first", ready)
    node = found["spec"]["nodeName"]
    assert pod_runner.nodes[node] == "zone-b"
    await kube.create(pod("second", affinity=in_zone("zone-b")))
    stuck = await kube.wait("pods", "second", lambda found: condition(found, "PodScheduled") == "False")
    (why,) = [each for each in stuck["status"]["conditions"] if each["type"] == "PodScheduled"]
    assert why["reason"] == "Unschedulable"
    assert f"{node} has first" in why["message"]
    await kube.delete("pods", "first")
    await kube.wait("pods", "second", ready)


async def test_a_cordoned_node_takes_no_new_pod(kube: Kube, pod_runner: PodRunner) -> None:
    first, *others = pod_runner.nodes
    for node in others:
        await kube.patch("nodes", node, {"spec": {"unschedulable": True}})
    for name in ("one", "two"):
        await kube.create(pod(name))
        assert (await kube.wait("pods", name, ready))["spec"]["nodeName"] == first


async def test_a_volume_outlives_its_pod_and_can_grow(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create(claim("data"))
    await kube.create(on_claim("writer", script("open('/data/it', 'w').write('kept')"), restartPolicy="Never"))
    await kube.wait("pods", "writer", phase("Succeeded"))
    bound = await kube.get("persistentvolumeclaims", "data")
    assert bound["status"]["phase"] == "Bound"
    await kube.delete("pods", "writer")
    await kube.wait_gone("pods", "writer")
    await kube.create(on_claim("reader", script("print(open('/data/it').read())"), restartPolicy="Never"))
    await kube.wait("pods", "reader", phase("Succeeded"))
    assert pod_runner.log("reader") == "kept\n"
    directory = pod_runner.mounted("reader", "/data")
    await kube.patch("persistentvolumeclaims", "data", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    await kube.wait(
        "persistentvolumeclaims", "data", lambda found: found["status"]["capacity"]["storage"] == "2Gi")
    await kube.delete("pods", "reader")
    await kube.delete("persistentvolumeclaims", "data")
    await kube.wait_gone("persistentvolumeclaims", "data")
    await kube.wait_gone("persistentvolumes", bound["spec"]["volumeName"])
    assert not directory.exists()


async def test_a_claim_in_use_is_not_deleted(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create(claim("data"))
    await kube.create(on_claim("user"))
    await kube.wait("pods", "user", ready)
    await kube.delete("persistentvolumeclaims", "data")
    assert "deletionTimestamp" in (await kube.get("persistentvolumeclaims", "data"))["metadata"]
    await kube.delete("pods", "user")
    await kube.wait_gone("persistentvolumeclaims", "data")


async def test_a_local_volume_pins_its_pod_and_cannot_grow(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create(claim("data", LOCAL))
    await kube.create(on_claim("pinned"))
    node = (await kube.wait("pods", "pinned", ready))["spec"]["nodeName"]
    with pytest.raises(Refused, match="resize"):
        await kube.patch("persistentvolumeclaims", "data", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    await kube.delete("pods", "pinned")
    await kube.wait_gone("pods", "pinned")
    await pod_runner.remove_node(node)
    await kube.create(on_claim("pinned"))
    stuck = await kube.wait("pods", "pinned", lambda found: condition(found, "PodScheduled") == "False")
    assert "does not have the volume" in json.dumps(stuck["status"])


async def test_a_node_that_fails_takes_its_pods_along_silently(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create(pod("lost"))
    found = await kube.wait("pods", "lost", ready)
    node, process = found["spec"]["nodeName"], pod_runner.container("lost").process
    await pod_runner.fail_node(node)
    assert process is not None
    assert process.returncode == -9
    assert ready(await kube.get("pods", "lost")), "nobody there tells"
    assert condition(await kube.get("nodes", node), "Ready") == "Unknown"
    await kube.delete("pods", "lost")
    assert "deletionTimestamp" in (await kube.get("pods", "lost"))["metadata"], "nobody there confirms it"
    await pod_runner.recover_node(node)
    await kube.wait_gone("pods", "lost")


async def test_pods_go_on_while_the_api_server_is_away(
    kube: Kube, pod_runner: PodRunner, control_plane: ControlPlane
) -> None:
    await kube.create({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "secret"}, "stringData": {"key": "x"}})
    secret = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "key"}}}
    await kube.create(pod("steady"))
    await kube.create(pod("dependent", {"env": [secret]}))
    names = ("steady", "dependent")
    for name in names:
        await kube.wait("pods", name, ready)
    control_plane.stop_api()
    for name in names:
        process = pod_runner.container(name).process
        assert process is not None
        pod_runner.container(name).kill()
        await process.wait()
    await until(lambda: "running" in pod_runner.container("steady").state)
    await until(lambda: (
        pod_runner.container("dependent").state.get("waiting", {}).get("reason") == "CreateContainerConfigError"))
    await asyncio.to_thread(control_plane.start_api)
    for name in names:
        await kube.wait("pods", name, lambda found: main_state(found).get("restartCount") == 1 and ready(found))
        await kube.delete("pods", name)
        await kube.wait_gone("pods", name)


async def test_a_hook_runs_before_the_end(kube: Kube, pod_runner: PodRunner) -> None:
    container = {
        **script(STUBBORN.format(then="raise SystemExit(0)")),
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo $X > /state/hook"]}}},
        "env": [{"name": "X", "value": "told first"}], "volumeMounts": [{"name": "state", "mountPath": "/state"}]}
    await kube.create(pod("hooked", container, volumes=[{"name": "state", "emptyDir": {}}]))
    await wait_ready_and_up(kube, pod_runner, "hooked")
    file, log_file = pod_runner.mounted("hooked", "/state") / "hook", pod_runner.container("hooked").log_file
    await kube.delete("pods", "hooked")
    await kube.wait_gone("pods", "hooked")
    assert file.read_text() == "told first\n"
    assert log_file.read_text() == "up\ntold\n"


async def test_a_deployment_runs(kube: Kube, pod_runner: PodRunner) -> None:
    template = {"metadata": {"labels": {"app": "it"}}, "spec": pod("any")["spec"]}
    await kube.create({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "both"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "it"}}, "template": template}})
    await kube.wait("deployments.apps", "both", lambda found: found.get("status", {}).get("readyReplicas") == 2)
    await kube.delete("deployments.apps", "both")

    async def gone() -> bool:
        return not await kube.list("pods")

    await until(gone, "the pods of the deployment are gone", 60)
