"""The inner command, in namespaces of its own: brings the Kubernetes cluster up and runs scenarios on it.

Started by `__main__` alone.  Stays out: what a scenario does (`scenarios`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from tests.kube import binaries
from tests.kube.client import Kube, condition
from tests.kube.walkthrough import NAMESPACE

from . import machines, volumes
from .commands import Failed, run, say
from .control_plane import ControlPlane
from .images import Images
from .places import CONTROL_ADDRESS, DOMAIN, Places, cache
from .quickstart import Shell
from .scenarios import SCENARIOS, World

READY_S = 180


async def main() -> int:
    """Bring everything up, run the scenarios named and return 0 when all passed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("state", type=Path)
    parser.add_argument("tree", type=Path)
    parser.add_argument("network", type=int)
    parser.add_argument("machines", type=int)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("scenarios", nargs="+")
    options = parser.parse_args()
    places = Places(options.state)
    world, provider = await bring_up(places, options.tree, options.network, options.machines)
    results: dict[str, str] = {}
    try:
        for name in options.scenarios:
            say(f"--- {name}")
            try:
                results[name] = await SCENARIOS[name](world) or "passed"
                say(f"{name}: {results[name]}")
            except Exception as problem:
                results[name] = f"FAILED: {problem}"
                say(f"{name}: {results[name]}")
                if not isinstance(problem, Failed):
                    traceback.print_exc()
                await asyncio.to_thread(world.collect, name)
        print("\n" + "\n".join(f"{name:14} {result}" for name, result in results.items()), flush=True)
        if not any(result.startswith("FAILED") for result in results.values()):
            places.passed.touch()
        if options.keep:
            await keep(places)
    finally:
        provider.cancel()
        with suppress(asyncio.CancelledError):
            await provider
        await world.close()
    return int(not places.passed.exists())


async def bring_up(
    places: Places, tree: Path, network: int, count: int
) -> tuple[World, asyncio.Task[None]]:
    """Start the control plane, the registry and the machines, and wait until the machines are Ready."""
    programs = {path.name: path.resolve() for path in (places.state / "all-programs").iterdir()}
    images = Images(places, tree, f"/proc/{os.getpid()}/fd/{network}")
    machines.create_bridge()
    _names(places, images.hosts())
    say("starting the control plane")
    plane = ControlPlane(programs, places)
    plane.start()
    plane.start_registry(tree, cache() / "registry")
    kubeconfig = plane.kubeconfig("admin")
    for name in ("kubectl", "helm"):
        (places.programs / name).symlink_to(programs[name])
    shell = Shell(places, kubeconfig)
    say("images for the machines")
    images.prepare_base()
    images.push_others(programs["etcd"])
    kubelets = binaries.cache_directory(binaries.KUBELETS)
    there = [
        machines.Machine(number, places, tree, kubelets, plane.machine_credentials(f"machine-{number}"))
        for number in range(1, count + 1)]
    for machine in there:
        say(f"starting {machine.describe()}")
        machine.start(there)
    kube = Kube(plane.admin, NAMESPACE)
    for machine in there:
        await kube.wait("nodes", machine.name, lambda node: condition(node, "Ready") == "True", timeout_s=READY_S)
        say(f"{machine.name} is Ready")
    provider = asyncio.create_task(volumes.provide(kube, there))
    return World(places, plane, there, kube, shell, provider), provider


def _names(places: Places, hosts: str) -> None:
    """Let every program of this namespace ask CoreDNS, and find the registry of the run."""
    places.resolv_conf.write_text(
        f"nameserver {CONTROL_ADDRESS}\nsearch {NAMESPACE}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n")
    own_hosts = places.state / "hosts"
    shutil.copy("/etc/hosts", own_hosts)
    with own_hosts.open("a") as file:
        file.write(hosts)
    run("mount", "--bind", places.resolv_conf, Path("/etc/resolv.conf").resolve())
    run("mount", "--bind", own_hosts, "/etc/hosts")


async def keep(places: Places) -> None:
    """Say how to enter the cluster and wait for Ctrl-C."""
    print(
        "\nThe cluster stays until Ctrl-C.  In another terminal, as root:\n"
        f"  nsenter --target $(pgrep --newest --full 'tools.cluster.inside {places.state}') --net --mount --pid \\\n"
        f"    env KUBECONFIG={places.keys / 'admin.kubeconfig'} PATH={places.programs}:$PATH bash", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(asyncio.run(main()))
    except Failed as failed:
        say(f"FAILED: {failed}")
        sys.exit(1)


