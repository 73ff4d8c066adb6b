"""The control plane, the name server and the registry: processes on the run's own address.

Stays out: machines, and the volumes that `volumes` provides.
"""

from __future__ import annotations

import base64
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tests.kube.certificates import Authority, write_key
from tests.kube.control_plane import Connection

from . import debian
from .commands import Started
from .machines import Credentials
from .places import CONTROL_ADDRESS, DOMAIN, SERVICES, Places

API = f"https://{CONTROL_ADDRESS}:6443"
SERVICE_ADDRESS = "10.78.0.1"
"""Of the Service `kubernetes`."""
ETCD = "http://127.0.0.1:2379"
REGISTRY_CONFIG = f"""\
version: 0.1
storage: {{filesystem: {{rootdirectory: /registry}}, delete: {{enabled: true}}}}
http: {{addr: "{CONTROL_ADDRESS}:80"}}
"""
COREFILE = f"""\
{DOMAIN}:53 {{
    bind {CONTROL_ADDRESS}
    errors
    kubernetes {DOMAIN} {{
        kubeconfig KUBECONFIG
    }}
}}
.:53 {{
    bind {CONTROL_ADDRESS}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


class ControlPlane:
    """etcd, API server, controllers, scheduler and CoreDNS of one Kubernetes cluster, and a registry."""

    def __init__(self, programs: Mapping[str, Path], places: Places) -> None:
        self._programs = programs
        self._places = places
        self._authority = Authority(places.keys)
        self._service_accounts = places.keys / "service-accounts.key"
        write_key(self._service_accounts)
        self._server = self._authority.issue(
            "server", "kube-apiserver",
            hosts=[CONTROL_ADDRESS, SERVICE_ADDRESS, "kubernetes.default.svc", "localhost"])
        self.admin = self._user("admin", ["system:masters"])
        self._running: list[Started] = []

    # --- users

    def _user(self, name: str, groups: Sequence[str] = ()) -> Connection:
        certificate, key = self._authority.issue(name.replace(":", "-"), name, groups)
        return Connection(API, str(self._authority.certificate_file), str(certificate), str(key))

    def kubeconfig(self, name: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig that holds all it needs, and return where."""
        who = self.admin if name == "admin" else self._user(name, groups)
        path = self._places.keys / f"{name.replace(':', '-')}.kubeconfig"
        inline = {
            key: _base64(Path(file)) for key, file in (
                ("client-certificate-data", who.certificate_file), ("client-key-data", who.key_file))}
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "trial",
            "clusters": [{"name": "trial", "cluster": {
                "server": API, "certificate-authority-data": _base64(Path(who.ca_file))}}],
            "users": [{"name": "trial", "user": inline}],
            "contexts": [{"name": "trial", "context": {"cluster": "trial", "user": "trial"}}]}))
        path.chmod(0o600)
        return path

    def machine_credentials(self, machine: str) -> Credentials:
        return Credentials(
            self._authority.certificate_file, self.kubeconfig(f"system:node:{machine}", ["system:nodes"]),
            self.kubeconfig("system:kube-proxy"))

    # --- life

    def start(self) -> None:
        """Start everything and wait until the API server is ready."""
        etcd = self._start(
            "etcd", f"--data-dir={self._places.state / 'etcd'}", f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}", "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380",
            "--unsafe-no-fsync", "--log-level=warn")
        etcd.wait_until(lambda: _answers(f"{ETCD}/health"))
        client = self._user("kube-apiserver-kubelet-client", ["system:masters"])
        api = self._start(
            "kube-apiserver", f"--etcd-servers={ETCD}", f"--bind-address={CONTROL_ADDRESS}",
            f"--advertise-address={CONTROL_ADDRESS}", "--secure-port=6443", f"--tls-cert-file={self._server[0]}",
            f"--tls-private-key-file={self._server[1]}", f"--client-ca-file={self._authority.certificate_file}",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
            f"--service-account-issuer={API}/", f"--service-account-key-file={self._service_accounts}",
            f"--service-account-signing-key-file={self._service_accounts}", f"--service-cluster-ip-range={SERVICES}",
            f"--kubelet-client-certificate={client.certificate_file}", f"--kubelet-client-key={client.key_file}",
            "--kubelet-preferred-address-types=InternalIP", "--allow-privileged=true", "--profiling=false")
        api.wait_until(lambda: _answers(f"{API}/readyz", self.admin))
        self._start(
            "kube-controller-manager", f"--kubeconfig={self.kubeconfig('system:kube-controller-manager')}",
            "--use-service-account-credentials", "--leader-elect=false", "--profiling=false",
            f"--service-account-private-key-file={self._service_accounts}",
            f"--root-ca-file={self._authority.certificate_file}", f"--cert-dir={self._places.keys / 'controllers'}",
            "--node-monitor-grace-period=20s", "--kube-api-qps=100", "--kube-api-burst=200")
        self._start(
            "kube-scheduler", f"--kubeconfig={self.kubeconfig('system:kube-scheduler')}", "--leader-elect=false",
            f"--cert-dir={self._places.keys / 'scheduler'}", "--profiling=false")
        corefile = self._places.state / "Corefile"
        corefile.write_text(COREFILE.replace("KUBECONFIG", str(self.kubeconfig("admin"))))
        self._start("coredns", "-conf", str(corefile))

    def start_registry(self, tree: Path, storage: Path) -> None:
        """Start the registry that builds push to and machines pull from."""
        storage.mkdir(parents=True, exist_ok=True)
        config = self._places.state / "registry.yaml"
        config.write_text(REGISTRY_CONFIG)
        registry = Started(
            [*debian.enter(tree, (storage, "/registry")), "docker-registry", "serve", f"/host{config}"],
            self._places.logs / "registry.log")
        self._running.append(registry)
        registry.wait_until(lambda: _answers(f"http://{CONTROL_ADDRESS}/v2/"))

    def check(self) -> None:
        """Raise Failed when one of the processes has ended."""
        for each in self._running:
            each.check()

    def _start(self, name: str, *arguments: str) -> Started:
        started = Started([self._programs[name], *arguments], self._places.logs / f"{name}.log")
        self._running.append(started)
        return started


def _answers(url: str, who: Connection | None = None) -> bool:
    try:
        context = None
        if who is not None:
            context = ssl.create_default_context(cafile=who.ca_file)
            context.load_cert_chain(who.certificate_file, who.key_file)
        with urllib.request.urlopen(url, timeout=5, context=context):
            return True
    except OSError:
        return False


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
