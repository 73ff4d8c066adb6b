"""The programs of the Kubernetes tests: those in KUBEBUILDER_ASSETS, else built once by Go into the user's cache.

`tests/assets/go.mod` pins what is built, `go.sum` what it is made of.  promtool, CoreDNS and the programs of a machine
have go.mod files of their own: they want other versions of the same libraries, and each go.mod that changes builds its
own programs again.  `tools/cluster` uses the last two, `bench` the peers of `bench/go`; the tests build neither.
`python -m tests.kube.binaries` builds ahead; with `--optional` it succeeds on a machine that cannot build them too.
With `--etcd` it builds etcd alone and prints its path.
Stays out: running them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ASSETS = Path(__file__).parents[1] / "assets"
PROMETHEUS = ASSETS / "promtool"
KUBELETS = ASSETS / "kubelets"
COREDNS = ASSETS / "coredns"
PEERS = Path(__file__).parents[2] / "bench" / "go"
JUDGES = ASSETS / "porcupine"
KUBERNETES_MIN = (1, 32)


class Unavailable(Exception):
    """The programs cannot be had on this machine; the text says why and how to get them."""


class BuildFailed(Exception):
    """Go is there and yet a program could not be built."""


@dataclass(frozen=True, slots=True)
class Tool:
    package: str
    module: str
    """Its module, whose version in go.mod is the program's."""
    version_arguments: tuple[str, ...]
    version_variables: tuple[str, ...] = ()
    """Where the linker writes the version: without a checkout of its repository a program does not know it."""


_KUBERNETES_VERSION = ("k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion")
TOOLS: Mapping[str, Tool] = {
    "etcd": Tool("go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", ("--version",)),
    "kube-apiserver": Tool(
        "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes", ("--version",), _KUBERNETES_VERSION),
    "kube-controller-manager": Tool(
        "k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes", ("--version",), _KUBERNETES_VERSION),
    "kubectl": Tool(
        "k8s.io/kubernetes/cmd/kubectl", "k8s.io/kubernetes", ("version", "--client"), _KUBERNETES_VERSION),
    "helm": Tool(
        "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3", ("version", "--short"),
        ("helm.sh/helm/v3/internal/version.version",)),
}
PROMETHEUS_TOOLS: Mapping[str, Tool] = {
    "promtool": Tool(
        "github.com/prometheus/prometheus/cmd/promtool", "github.com/prometheus/prometheus", ("--version",),
        ("github.com/prometheus/common/version.Version",)),
}
BUILD_S = 900
"""The bound on building one program, and on waiting for another run that builds."""
LOOK_S = 0.2
BUILD_FLAGS = ("-trimpath",)
KUBELET_TOOLS: Mapping[str, Tool] = {
    name: Tool(f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes", ("--version",), _KUBERNETES_VERSION)
    for name in ("kubelet", "kube-proxy", "kube-scheduler")}
COREDNS_TOOLS: Mapping[str, Tool] = {
    "coredns": Tool("github.com/coredns/coredns", "github.com/coredns/coredns", ("-version",)),
}
PEER_TOOLS: Mapping[str, Tool] = {
    "nats-server": Tool("github.com/nats-io/nats-server/v2", "github.com/nats-io/nats-server/v2", ("--version",)),
    "etcd": Tool("go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", ("--version",)),
    "natsload": Tool(
        "tidemark.dev/bench/natsload", "github.com/nats-io/nats.go", ("--version",), ("main.version",)),
    "etcdload": Tool(
        "tidemark.dev/bench/etcdload", "go.etcd.io/etcd/client/v3", ("--version",), ("main.version",)),
}
"""The last two are ours, in Go: their version is that of the client library that they measure with."""
JUDGE_TOOLS: Mapping[str, Tool] = {
    "judge": Tool(
        "tidemark.dev/tests/porcupine/judge", "github.com/anishathalye/porcupine", ("--version",), ("main.version",)),
}
OTHER_TOOLS: Mapping[Path, Mapping[str, Tool]] = {
    PROMETHEUS: PROMETHEUS_TOOLS, KUBELETS: KUBELET_TOOLS, COREDNS: COREDNS_TOOLS, PEERS: PEER_TOOLS,
    JUDGES: JUDGE_TOOLS}
"""The programs of the other go.mod files: promtool and the judge of histories for tests, the peers for `bench`, the
rest for `tools/cluster`."""
MORE_FLAGS: Mapping[Path, tuple[str, ...]] = {PROMETHEUS: ("-tags=remove_all_sd",)}
"""promtool without service discovery, which is half of it."""
BUILD_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly -p=2"}


def tools_of(assets: Path) -> Mapping[str, Tool]:
    return OTHER_TOOLS.get(assets, TOOLS)


def build_flags(assets: Path) -> tuple[str, ...]:
    return BUILD_FLAGS + MORE_FLAGS.get(assets, ())


def pinned_version(tool: Tool, assets: Path = ASSETS) -> str:
    """Return the version of the tool's module, as go.mod has it."""
    found = re.search(
        rf"^(?:require )?\s*{re.escape(tool.module)} (v\S+)", (assets / "go.mod").read_text(), re.MULTILINE)
    assert found, f"{assets.name}/go.mod does not require {tool.module}"
    return found[1]


def cache_directory(assets: Path = ASSETS) -> Path:
    """Return the folder of the programs that go.mod, go.sum and our own sources describe, for every checkout alike."""
    content = hashlib.sha256()
    for path in (assets / "go.mod", assets / "go.sum", *sorted(assets.glob("*/*.go"))):
        content.update(path.read_bytes())
    content.update(repr((tools_of(assets), build_flags(assets), BUILD_ENVIRONMENT)).encode())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tidemark" / "test-assets" / f"{content.hexdigest()[:16]}-{sys.platform}-{platform.machine()}"


def find(name: str, assets: Path = ASSETS) -> Path | None:
    """Return the program from KUBEBUILDER_ASSETS, else the one that was built, else None.

    Peers are always built: their results name the version that go.mod pins.
    """
    places = [cache_directory(assets)]
    if assets != PEERS and (given := os.environ.get("KUBEBUILDER_ASSETS")):
        places.insert(0, Path(given))
    return next((place / name for place in places if os.access(place / name, os.X_OK)), None)


def prepare(say: Callable[[str], None], assets: Path = ASSETS, only: str = "") -> dict[str, Path]:
    """Return every program of a go.mod, or `only` one; build the missing ones, which takes minutes the first time.

    Raises Unavailable where they cannot be had and BuildFailed where they should be.
    """
    if sys.platform != "linux":
        raise Unavailable("these programs need Linux: pods of the tests listen on loopback addresses of their own")
    wanted = [only] if only else list(tools_of(assets))
    missing = [name for name in wanted if find(name, assets) is None]
    if missing:
        go = _find_go(missing, assets)
        directory = cache_directory(assets)
        directory.mkdir(parents=True, exist_ok=True)
        with _only_builder(directory, say):
            for name in missing:
                if find(name, assets) is None:  # another run may have built it while this one waited
                    _build(go, name, assets, say)
    return {name: path for name in wanted if (path := find(name, assets))}


def built(assets: Path = ASSETS) -> dict[str, Path]:
    """Return every program of a go.mod; raise Unavailable, with the names, where some are not built."""
    found = {name: find(name, assets) for name in tools_of(assets)}
    if missing := [name for name, path in found.items() if path is None]:
        raise Unavailable(f"not built on this machine: {', '.join(missing)}; `make assets` builds them")
    return {name: path for name, path in found.items() if path is not None}


def _find_go(missing: list[str], assets: Path) -> str:
    wanted = re.search(r"^go (\d+)\.(\d+)", (assets / "go.mod").read_text(), re.MULTILINE)
    assert wanted
    needs = f"no {', '.join(missing)}: put Go {wanted[1]}.{wanted[2]} or newer on PATH and try again"
    if assets != PEERS:
        needs += ", or name a folder that holds them in KUBEBUILDER_ASSETS"
    go = shutil.which("go")
    if go is None:
        raise Unavailable(needs)
    said = subprocess.run([go, "version"], capture_output=True, text=True, timeout=60, check=False).stdout
    has = re.search(r"go(\d+)\.(\d+)", said)
    if has is None or (int(has[1]), int(has[2])) < (int(wanted[1]), int(wanted[2])):
        raise Unavailable(f"{needs} ({go} is {said.strip() or 'broken'})")
    return go


@contextmanager
def _only_builder(directory: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a cache directory; it goes with the process, however that ends."""
    with (directory / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run builds the Kubernetes test programs in {directory}; waiting for it")
            _wait_for(lock, directory)
        yield


def _wait_for(lock: IO[str], directory: Path) -> None:
    """Wait for the lock within `BUILD_S`: flock has no deadline, so that this tries again and again."""
    deadline = time.monotonic() + BUILD_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BuildFailed(f"another run has held {directory / 'lock'} for {BUILD_S} s") from None
            time.sleep(LOOK_S)


def _build(go: str, name: str, assets: Path, say: Callable[[str], None]) -> None:
    tool, directory = tools_of(assets)[name], cache_directory(assets)
    version = pinned_version(tool, assets)
    say(f"building {name} {version} into {directory} (once; takes minutes)")
    flags = ["-s", "-w", *(f"-X {variable}={version}" for variable in tool.version_variables)]
    partial = directory / f".{name}.{os.getpid()}"
    nice = [found, "-n", "19"] if (found := shutil.which("nice")) else []
    try:
        finished = subprocess.run(
            [*nice, go, "build", *build_flags(assets), "-ldflags", " ".join(flags), "-o", str(partial), tool.package],
            cwd=assets, env={**os.environ, **BUILD_ENVIRONMENT}, capture_output=True, text=True, timeout=BUILD_S,
            check=False)
        if finished.returncode:
            raise BuildFailed(
                f"{name} {version} could not be built (leave these tests out with -m 'not apiserver'):\n"
                f"{finished.stderr[-3000:]}")
        check_version(partial, tool, version)
        partial.replace(directory / name)
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"{name} {version} was not built within {BUILD_S} s") from None
    finally:
        partial.unlink(missing_ok=True)


def check_version(program: Path, tool: Tool, version: str) -> None:
    """Raise BuildFailed unless the program says it is of that version."""
    asked = subprocess.run(
        [str(program), *tool.version_arguments], capture_output=True, text=True, timeout=120, check=False)
    if not re.search(rf"(?<![\d.]){re.escape(version.removeprefix('v'))}(?![\d.])", asked.stdout):
        raise BuildFailed(f"{program.name} should be {version} and says: {asked.stdout}{asked.stderr}")


def main(*, optional: bool) -> None:
    """Build what is missing and print where each program is."""
    for assets in (ASSETS, PROMETHEUS, JUDGES):
        try:
            found = prepare(lambda text: print(text, flush=True), assets)
        except Unavailable as problem:
            if not optional:
                raise
            print(problem)
            continue
        except BuildFailed as problem:
            if not optional or assets != JUDGES:   # one test needs a judge, and skips with the reason
                raise
            print(problem)
            continue
        for name, path in found.items():
            print(f"{name:24} {path}")


def main_of_etcd() -> None:
    """Print the path of the etcd that was built, for `make demo`; print nothing where it cannot be built."""
    try:
        found = prepare(lambda text: print(text, file=sys.stderr, flush=True), only="etcd")
    except (Unavailable, BuildFailed) as problem:
        print(f"{str(problem).splitlines()[0]}; the demo takes another etcd", file=sys.stderr)
        return
    print(found["etcd"])


if __name__ == "__main__":
    if "--etcd" in sys.argv[1:]:
        main_of_etcd()
    else:
        main(optional="--optional" in sys.argv[1:])
