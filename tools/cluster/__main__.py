"""The command: looks at the machine, makes what can be kept, and runs `inside` in namespaces that end with it."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.kube import binaries

from . import cgroups, debian, images, requirements
from .commands import say
from .places import REPOSITORY, Places, cache
from .scenarios import SCENARIOS

MACHINES_MIN, MACHINES_MAX = 3, 20
LOGS_KEPT = 10
"""Runs that failed whose logs stay."""
DESCRIPTION = """\
Run Tidemark on a real Kubernetes cluster that lives on this machine for as long as the command runs: an API server,
and machines with containerd, a kubelet and kube-proxy, each in namespaces of its own. The images are built from the
Dockerfile, the chart is installed, and the scenarios run one after another. All but the quickstart write all the time
and compare at their end what was acknowledged with what a reader sees.

It needs root on Linux, and Go the first time. Nothing of this machine's network, mounts or packages is changed. On a
machine that does not permit it the command prints what is missing and exits with 0.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 all passed or skipped, 1 a scenario failed, 2 wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not MACHINES_MIN <= options.machines <= MACHINES_MAX:
        parser.error(f"--machines takes {MACHINES_MIN} to {MACHINES_MAX}")
    if options.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:14} {(scenario.__doc__ or '').splitlines()[0]}")
        return 0
    if reasons := requirements.missing():
        return _skipped(reasons, required=options.required)
    try:
        programs = {
            name: path for assets in (binaries.ASSETS, binaries.KUBELETS, binaries.COREDNS)
            for name, path in binaries.prepare(say, assets).items()}
    except binaries.Unavailable as problem:
        return _skipped([str(problem)], required=options.required)
    tree = debian.tree("machine", debian.MACHINE)
    if reasons := requirements.missing_in(tree):
        return _skipped(reasons, required=options.required)
    with _only_run():
        return _run(options, tree, programs)


def _run(options: argparse.Namespace, tree: Path, programs: dict[str, Path]) -> int:
    """Run the scenarios and return 0 when all passed."""
    _remove_left_over()
    images.limit_cache()
    images.fetch_base(tree)
    places = Places(Path(tempfile.mkdtemp(prefix=cgroups.PREFIX)))
    places.owner.write_text(str(os.getpid()))
    passed = False
    try:
        passed = _run_inside(options, places, tree, programs) == 0
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C does not stop the clean-up
        cgroups.remove(places.cgroup)
        _keep_logs(places, passed=passed)
    return 0 if passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tools.cluster", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=3, help="how many machines, 3 to 20 (default: 3)")
    parser.add_argument(
        "--only", action="append", choices=list(SCENARIOS), metavar="SCENARIO",
        help="run this scenario alone; may be given several times; --list names them")
    parser.add_argument(
        "--keep", action="store_true", help="keep the cluster at the end until Ctrl-C, and say how to enter it")
    parser.add_argument("--list", action="store_true", help="list the scenarios and exit")
    parser.add_argument(
        "--required", action="store_true", help="exit with 1 instead of 0 when this machine does not permit it")
    return parser


def _skipped(reasons: Sequence[str], *, required: bool) -> int:
    print("skipped: this machine lacks")
    for reason in reasons:
        print(f"  - {reason}")
    return 1 if required else 0


def _run_inside(options: argparse.Namespace, places: Places, tree: Path, programs: dict[str, Path]) -> int:
    """Run `inside` in namespaces of its own; when this process ends, however that is, everything in them ends."""
    for folder in (places.logs, places.keys, places.programs):
        folder.mkdir()
    shutil.copy("/etc/resolv.conf", places.host_resolv_conf)
    together = places.state / "all-programs"
    together.mkdir()
    for name, path in programs.items():
        (together / name).symlink_to(path)
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    command = [
        "setpriv", "--pdeathsig=KILL", "--",
        "unshare", "--net", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc", "--",
        str(tree / "usr/bin/tini-static"), "-g", "--",
        sys.executable, "-m", "tools.cluster.inside", str(places.state), str(tree), str(network), str(options.machines),
        *(["--keep"] if options.keep else []), *(options.only or SCENARIOS)]
    process = subprocess.Popen(command, cwd=REPOSITORY, pass_fds=[network], start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        say("interrupted: ending all machines")
        return 0 if places.passed.exists() else 130
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _only_run() -> Iterator[None]:
    """Hold the lock of the images in the cache: runs of two checkouts build images of the same names."""
    with (cache() / "run.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run uses the images in the cache; waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_left_over() -> None:
    """Remove control groups and folders of runs that were killed before they could do it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{cgroups.PREFIX}*"):
        places = Places(folder)
        if places.owner.exists() and not _runs(int(places.owner.read_text())):
            say(f"removing {folder}, left over by a run that was killed")
            cgroups.remove(places.cgroup)
            shutil.rmtree(folder)


def _runs(process: int) -> bool:
    try:
        return b"tools.cluster" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def _keep_logs(places: Places, *, passed: bool) -> None:
    """Remove the run's folder; after a failure keep its logs, and those of the machines, in the cache."""
    if not passed:
        kept = cache() / "logs" / places.state.name
        for older in sorted(kept.parent.glob("*"), key=lambda path: path.stat().st_mtime)[:-LOGS_KEPT + 1]:
            shutil.rmtree(older)
        shutil.copytree(places.logs, kept)
        for folder in places.state.glob("machines/*/data/logs"):
            shutil.copytree(folder, kept / folder.parts[-3])
        print(f"logs: {kept}")
    shutil.rmtree(places.state, ignore_errors=True)


def _end(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
