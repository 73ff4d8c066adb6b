"""A control plane of real processes on loopback: etcd, kube-apiserver, kube-controller-manager.

RBAC is on, users come with client certificates, admission is what a cluster has by default.  There is no kubelet and no
scheduler: `pod_runner` stands in for both.  Stays out: what is installed into it (`fixtures`).
"""

from __future__ import annotations

import json
import shutil
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .binaries import KUBERNETES_MIN
from .certificates import Authority, write_key
from .loopback import LoopbackNetwork
from .processes import Child, wait_until

START_SECONDS = 120.0
ETCD_PORT, ETCD_PEER_PORT, API_PORT, CONTROLLERS_PORT = 2379, 2380, 6443, 10257
DEFINITIONS_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CONTROLLERS = (
    "garbage-collector-controller", "namespace-controller", "disruption-controller",
    "serviceaccount-controller", "root-ca-certificate-publisher-controller",
    "persistentvolumeclaim-protection-controller", "persistentvolume-protection-controller",
    "deployment-controller", "replicaset-controller", "statefulset-controller", "clusterrole-aggregation-controller",
)
"""What acts on objects that Tidemark or its chart creates; nothing that needs a cloud, a kubelet or a scheduler."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How one user reaches the API server."""

    url: str
    ca_file: str
    certificate_file: str
    key_file: str

    def open(self, path: str, timeout_s: float = 5.0) -> bytes:
        """GET without an event loop, for start-up and simple questions."""
        context = ssl.create_default_context(cafile=self.ca_file)
        context.load_cert_chain(self.certificate_file, self.key_file)
        with urllib.request.urlopen(self.url + path, timeout=timeout_s, context=context) as answer:
            return bytes(answer.read())


class Etcd(Child):
    """A single-member etcd on the usual port of its own address."""

    def __init__(self, program: Path, address: str, directory: Path, *flags: str) -> None:
        self.url = f"http://{address}:{ETCD_PORT}"
        self._data = directory / "data"
        peer = f"http://{address}:{ETCD_PEER_PORT}"
        super().__init__(
            [
                str(program), "--name=test", f"--data-dir={self._data}", f"--listen-client-urls={self.url}",
                f"--advertise-client-urls={self.url}", f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=test={peer}", "--log-level=warn", *flags,
            ],
            directory / "etcd.log")

    def start(self) -> None:
        """Start, again with its old data, and wait until it serves."""
        super().start()
        wait_until(self._healthy, self, START_SECONDS)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(json.load(answer)["health"] == "true")
        except OSError:
            return False

    def forget(self) -> None:
        """Remove the data of one that does not run; logs stay."""
        shutil.rmtree(self._data, ignore_errors=True)


class ControlPlane:
    """One API server with what belongs to it; every part may be stopped and started alone."""

    def __init__(self, programs: Mapping[str, Path], directory: Path) -> None:
        self.programs = programs
        self.directory = directory
        self.network = LoopbackNetwork()
        address = self.network.server
        self.url = f"https://{address}:{API_PORT}"
        self._authority = Authority(directory / "pki")
        self._users: dict[tuple[str, tuple[str, ...]], Connection] = {}
        self._key = directory / "pki" / "service-accounts.key"
        write_key(self._key)
        server_certificate, server_key = self._authority.issue(
            "server", "kube-apiserver", hosts=[address, "localhost", "kubernetes.default.svc"])
        self.admin = self.user("admin", ["system:masters"])
        self.etcd = Etcd(programs["etcd"], address, directory / "etcd", "--unsafe-no-fsync")
        self.api = Child(
            [
                str(programs["kube-apiserver"]), f"--etcd-servers={self.etcd.url}",
                f"--bind-address={address}", f"--advertise-address={address}", f"--secure-port={API_PORT}",
                f"--tls-cert-file={server_certificate}", f"--tls-private-key-file={server_key}",
                f"--client-ca-file={self._authority.certificate_file}", "--authorization-mode=RBAC",
                f"--service-account-issuer={self.url}/", f"--service-account-key-file={self._key}",
                f"--service-account-signing-key-file={self._key}", "--service-cluster-ip-range=10.0.0.0/24",
                "--allow-privileged=true", "--endpoint-reconciler-type=none", "--shutdown-delay-duration=0s",
                "--enable-priority-and-fairness=false", "--profiling=false",
            ],
            directory / "kube-apiserver.log")
        self.controllers = Child(
            [
                # Each controller under its own service account, as elsewhere: admission policies tell them by it.
                str(programs["kube-controller-manager"]), "--use-service-account-credentials",
                f"--kubeconfig={self.kubeconfig(self.user('system:kube-controller-manager'))}",
                f"--controllers={','.join(CONTROLLERS)}", "--leader-elect=false", f"--bind-address={address}",
                f"--secure-port={CONTROLLERS_PORT}", f"--cert-dir={directory / 'pki' / 'controllers'}",
                f"--service-account-private-key-file={self._key}",
                f"--root-ca-file={self._authority.certificate_file}", "--profiling=false",
                "--kube-api-qps=200", "--kube-api-burst=400",
            ],
            directory / "kube-controller-manager.log")

    # --- users

    def user(self, name: str, groups: Sequence[str] = ()) -> Connection:
        """Return the connection of a user; what the user may do is up to role bindings."""
        who = (name, tuple(groups))
        if who not in self._users:
            file_name = f"user-{len(self._users)}"
            certificate, key = self._authority.issue(file_name, name, groups)
            self._users[who] = Connection(
                self.url, str(self._authority.certificate_file), str(certificate), str(key))
        return self._users[who]

    def server_certificate(self, name: str, host: str) -> tuple[Path, Path]:
        """Return the certificate and the key of another server that the API server calls."""
        return self._authority.issue(name, name, hosts=[host])

    def kubeconfig(self, user: Connection | None = None) -> Path:
        """Write a kubeconfig of a user, by default the administrator, for programs that want one."""
        who = user or self.admin
        path = self.directory / f"{Path(who.certificate_file).stem}.kubeconfig"
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": who.url, "certificate-authority": who.ca_file}}],
            "users": [{"name": "test", "user": {
                "client-certificate": who.certificate_file, "client-key": who.key_file}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }))
        return path

    # --- life

    def start(self) -> None:
        """Start etcd and the API server and wait until it serves."""
        self.etcd.start()
        self.start_api()
        version = self.version()
        major, minor = int(version["major"]), int(version["minor"].rstrip("+"))
        assert (major, minor) >= KUBERNETES_MIN, f"Kubernetes 1.32 or newer is needed, this is {version['gitVersion']}"

    def start_api(self) -> None:
        """Start the API server, again on its old address with its old objects, and wait until it serves all of them."""
        self.api.start()
        wait_until(self._serves, self.api, START_SECONDS)
        if self.controllers.running:  # they look again only after half a minute, and pods wait for their accounts
            self.controllers.kill()
            self.controllers.start()

    def stop_api(self) -> None:
        """Cut everybody off, as the loss of the API server does; what it stored stays."""
        self.api.kill()

    def start_controllers(self) -> None:
        """Start the controllers.  The garbage collector notices later definitions only after half a minute."""
        self.controllers.start()

    def stop(self) -> None:
        """End everything at once: there is nothing to keep but the logs."""
        for child in (self.controllers, self.api, self.etcd):
            child.kill()
        self.network.release()
        self.etcd.forget()

    def version(self) -> dict[str, Any]:
        return dict(json.loads(self.admin.open("/version")))

    def _serves(self) -> bool:
        """Say whether it is ready, custom resources too: of those it still reads what it keeps when it says it is."""
        try:
            if self.admin.open("/readyz") != b"ok":
                return False
            for definition in json.loads(self.admin.open(DEFINITIONS_PATH))["items"]:
                spec = definition["spec"]
                for version in spec["versions"]:
                    if version["served"]:
                        path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
                        self.admin.open(f"{path}?limit=1")
        except OSError:  # URLError and HTTPError are too
            return False
        return True
