"""Machines: namespaces and a Debian tree each, with containerd, a kubelet and kube-proxy; they vanish and come back.

A machine's link, its disk and what it drops between pods are its own.  Stays out: the API server (`control_plane`).
"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from . import cgroups
from .commands import Failed, Started, run
from .places import CONTROL_ADDRESS, DOMAIN, IN_MACHINE, NETWORK_BITS, Places, machine_address, pod_network

START = Path(__file__).with_name("machine.sh")
BRIDGE = "machines"
CUT = "tidemark_cut"
"""The table of nf_tables that holds the cuts."""
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
CONFIG = f"{IN_MACHINE}/config"
SERVICES_SH = f"""\
# What a machine runs; each program starts again a second after it ended.
keep() {{ while :; do "$@" >> {IN_MACHINE}/logs/$1.log 2>&1 || true; sleep 1; done; }}
keep containerd --config {CONFIG}/containerd.toml &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.1; done
keep kubelet --config {CONFIG}/kubelet.yaml --kubeconfig {CONFIG}/kubelet.kubeconfig \
    --node-ip "$(cat {CONFIG}/address)" &
keep kube-proxy --config {CONFIG}/kube-proxy.yaml &
wait
"""
CONTAINERD = f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE no process may be protected better than containerd is.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{CONFIG}/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{CONFIG}/registries"
"""
REGISTRY_HOST = f"""\
[host."http://{CONTROL_ADDRESS}"]
  capabilities = ["pull", "resolve"]
"""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files that a machine presents and trusts."""

    authority: Path
    kubelet_kubeconfig: Path
    proxy_kubeconfig: Path


@dataclass
class Machine:
    """One machine by its number, which gives its name and its addresses."""

    number: int
    places: Places
    tree: Path
    programs: Path
    credentials: Credentials
    _process: Started | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return f"machine-{self.number}"

    @property
    def address(self) -> str:
        return machine_address(self.number)

    @property
    def data(self) -> Path:
        """Its disk, which it calls /var/lib/machine."""
        return self.places.disk(self.name) / "data"

    @property
    def running(self) -> bool:
        return self._process is not None

    # --- life

    def start(self, others: Sequence[Machine]) -> None:
        """Start it with the disk it had, and connect it."""
        self._configure()
        groups = cgroups.create(self.places.cgroup, self.name)
        join = " && ".join(f"echo $$ > {file}" for file in groups)
        words: list[str | Path] = [
            "unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc",
            "--cgroup", "bash", START, self.name, self.tree, self.places.disk(self.name), self.programs,
            str(cgroups.version())]
        self._process = Started(
            ["bash", "-c", f'{join} && exec "$@"', "bash", *words], self.places.logs / f"{self.name}.log")
        self._connect(others)

    def lose(self) -> None:
        """Cut the link first, so that no connection ends properly, then end every process."""
        assert self._process is not None
        run("ip", "link", "set", self._port, "down")
        self._process.kill()
        self._process = None
        run("bash", "-c", f"! ip link show {self._port} > /dev/null 2>&1 || ip link delete {self._port}")

    def _first_process(self) -> int:
        """Return the number of its first process, from outside."""
        assert self._process is not None
        process = self._process

        def child() -> int | None:
            text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            return int(text.split()[0]) if text.strip() else None

        process.wait_until(lambda: child() is not None, 30)
        found = child()
        assert found is not None
        return found

    def inside(self, *command: str) -> str:
        """Run a command of the Debian tree in the machine's namespaces and return its output."""
        first = str(self._first_process())
        return run("nsenter", "--target", first, "--mount", "--net", "--pid", "--uts", "--ipc", "--", *command)

    # --- network

    @property
    def _port(self) -> str:
        return f"port-{self.number}"

    def _connect(self, others: Sequence[Machine]) -> None:
        first = str(self._first_process())
        network = ["nsenter", "--target", first, "--net", "--", "ip"]
        run("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", first)
        run("ip", "link", "set", self._port, "master", BRIDGE, "up")
        run(*network, "link", "set", "lo", "up")
        run(*network, "address", "add", f"{self.address}/{NETWORK_BITS}", "dev", "eth0")
        run(*network, "link", "set", "eth0", "up")
        run(*network, "route", "add", "default", "via", CONTROL_ADDRESS)
        for other in others:
            if other is not self:
                run(*network, "route", "add", pod_network(other.number), "via", other.address)
        run("ip", "route", "replace", pod_network(self.number), "via", self.address)

    def cut(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Drop all packets between these pairs of addresses, both ways; nothing answers."""
        rules = [f"ip saddr {a} ip daddr {b} drop" for pair in pairs for a, b in (pair, pair[::-1])]
        text = (
            f"table inet {CUT}\ndelete table inet {CUT}\n"
            f"table inet {CUT} {{ chain between_pods {{ type filter hook forward priority -300; policy accept;\n"
            + "\n".join(rules) + "\n}\n}\n")
        (self.data / "config" / "cut.nft").write_text(text)
        self.inside("nft", "-f", f"{CONFIG}/cut.nft")

    def heal(self) -> None:
        """Drop nothing any more."""
        self.inside("bash", "-c", f"! nft list table inet {CUT} > /dev/null 2>&1 || nft delete table inet {CUT}")

    # --- configuration

    def _configure(self) -> None:
        config = self.data / "config"
        for folder in ("cni", "registries/_default"):
            (config / folder).mkdir(parents=True, exist_ok=True)
        (self.data / "volumes").mkdir(exist_ok=True)
        shutil.copy(self.credentials.authority, config / "ca.crt")
        shutil.copy(self.credentials.kubelet_kubeconfig, config / "kubelet.kubeconfig")
        shutil.copy(self.credentials.proxy_kubeconfig, config / "kube-proxy.kubeconfig")
        texts = {
            "address": self.address, "services.sh": SERVICES_SH, "containerd.toml": CONTAINERD,
            "registries/_default/hosts.toml": REGISTRY_HOST, "resolv.conf": f"nameserver {CONTROL_ADDRESS}\n",
            "kubelet.yaml": yaml.safe_dump(self._kubelet()), "kube-proxy.yaml": yaml.safe_dump(self._kube_proxy()),
            "cni/10-pods.conflist": json.dumps(self._pods_network())}
        for name, text in texts.items():
            (config / name).write_text(text, encoding="utf-8")

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs", "failCgroupV1": False, "failSwapOn": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [CONTROL_ADDRESS], "clusterDomain": DOMAIN, "resolvConf": f"{CONFIG}/resolv.conf",
            "authentication": {
                "anonymous": {"enabled": False}, "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{CONFIG}/ca.crt"}},
            "authorization": {"mode": "Webhook"},
            "nodeStatusUpdateFrequency": "4s", "nodeStatusReportFrequency": "20s",
            # The disk is that of the whole machine, which other programs fill too.
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        }

    def _kube_proxy(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": f"{CONFIG}/kube-proxy.kubeconfig"},
            "hostnameOverride": self.name, "mode": "nftables", "clusterCIDR": "10.77.0.0/16",
            # Sizes of connection tracking belong to the whole kernel.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }

    def _pods_network(self) -> dict[str, object]:
        return {
            "cniVersion": "0.4.0", "name": "pods", "plugins": [{
                "type": "ptp", "ipMasq": False, "mtu": 1500,
                "ipam": {
                    "type": "host-local", "dataDir": "/run/cni", "routes": [{"dst": "0.0.0.0/0"}],
                    "ranges": [[{"subnet": pod_network(self.number)}]]}}]}

    def describe(self) -> str:
        return textwrap.shorten(f"{self.name} at {self.address}, pods in {pod_network(self.number)}", 200)


def create_bridge() -> None:
    """Make the link that all machines share, in the namespace of the run."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{CONTROL_ADDRESS}/{NETWORK_BITS}", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")


def on(machines: Sequence[Machine], name: str) -> Machine:
    """Return the machine of a name."""
    for machine in machines:
        if machine.name == name:
            return machine
    raise Failed(f"no machine {name}")
