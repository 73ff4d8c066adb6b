"""Images: `docker build` and `docker push` of the documentation by buildah, and the images that the chart asks for.

The Dockerfile stays as it is; where no registry has its base image, one made of Debian's Python bears that name.
Stays out: the commands that build Tidemark's images, which stand in the quickstart.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import yaml

from . import debian
from .commands import Failed, run, say
from .machines import PAUSE_IMAGE
from .places import CONTROL_ADDRESS, REPOSITORY, Places, cache

DOCKERFILE = REPOSITORY / "Dockerfile"
VALUES = REPOSITORY / "charts" / "tidemark" / "values.yaml"
BUILD_S = 1800
CACHE_GIB = 10
STORAGE = "/var/lib/containers"
PIP_CONF = "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\nprogress_bar = off\n"
DOCKER = """\
#!/bin/bash
# `docker build` and `docker push`, done by buildah in a Debian tree; builds use the network of this machine.
set -euo pipefail
command=$1
shift
case $command in
build)
    exec nice nsenter --net={host_network} -- {build} buildah build --isolation=chroot --network=host --layers \\
        --pull={pull} --volume=/etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro \\
        --volume=/host{pip_conf}:/etc/pip.conf:ro "$@" ;;
push) exec {push} buildah push --tls-verify=false "$@" ;;
*) echo "docker $command: not here" >&2; exit 1 ;;
esac
"""


def base_image() -> str:
    """Return the name of the image that the Dockerfile starts from."""
    found = re.search(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, "the Dockerfile names its base"
    return found[1]


def storage() -> Path:
    """Return where buildah keeps images between runs."""
    folder = cache() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def limit_cache() -> None:
    """Begin with no images again once those of earlier checkouts fill the cache."""
    folders = [folder for folder in (cache() / "images", cache() / "registry") if folder.exists()]
    if folders and sum(int(run("du", "-s", "-k", folder).split()[0]) for folder in folders) >> 20 >= CACHE_GIB:
        say(f"images in {cache()} take {CACHE_GIB} GiB and more; they are removed and built again")
        for folder in folders:
            folder.rename(cache() / f"removed-{folder.name}-{os.getpid()}")
    for removed in cache().glob("removed-*"):  # renamed first: an interrupt leaves no half of a store
        shutil.rmtree(removed)


def fetch_base(tree: Path) -> None:
    """Have what the Dockerfile's base image comes from: its registry, else Debian's packages.

    It runs before the namespaces of a run, from where neither is reached.
    """
    name = base_image()
    buildah = [*debian.enter(tree, (storage(), STORAGE)), "buildah"]
    try:
        run(*buildah, "inspect", "--type=image", name)
    except Failed:
        try:
            say(f"pulling {name}")
            run(*buildah, "pull", name, timeout_s=BUILD_S)
        except Failed:
            say("it cannot be pulled here; an image of Debian's Python takes its name")
            debian.tree("python", debian.PYTHON)


class Images:
    """Builds images into the cache and pushes them to the registry of the run."""

    def __init__(self, places: Places, tree: Path, host_network: str) -> None:
        self._places = places
        pip_conf = places.state / "pip.conf"
        index = os.environ.get("PIP_INDEX_URL")
        pip_conf.write_text(PIP_CONF + (f"index-url = {index}\n" if index else ""))
        self._log = places.logs / "images.log"
        binds = [(storage(), STORAGE)]
        self._buildah = debian.enter(tree, *binds, resolv_conf=places.host_resolv_conf)
        docker = places.programs / "docker"
        docker.write_text(DOCKER.format(
            host_network=host_network, pull="never", pip_conf=pip_conf, build=shlex.join(self._buildah),
            push=shlex.join(debian.enter(tree, *binds))))
        docker.chmod(0o755)
        self._docker = docker

    def prepare_base(self) -> None:
        """Make the Dockerfile's base image of the tree of `fetch_base` where no registry gave it."""
        name = base_image()
        try:
            run(*self._buildah, "buildah", "inspect", "--type=image", name, log=self._log)
        except Failed:
            root = debian.tree("python", debian.PYTHON)
            self._build(name, root, "FROM scratch\nCOPY . /\nCMD [\"python3\"]\n")

    def push_others(self, etcd: Path) -> None:
        """Build and push what pods need besides Tidemark's images: the pause image and the trial etcd of the chart."""
        files = self._places.state / "files"
        for name, programs, command in (
            (PAUSE_IMAGE, {"pause": self._tree_file("usr/bin/catatonit")}, '["/usr/local/bin/pause", "-P"]'),
            (self._etcd_image(), {"etcd": etcd}, '["etcd"]'),
        ):
            shutil.rmtree(files, ignore_errors=True)
            (files / "usr/local/bin").mkdir(parents=True)
            for program, source in programs.items():
                shutil.copy(source, files / "usr/local/bin" / program)
            self._build(name, files, f"FROM scratch\nENV PATH=/usr/local/bin\nCOPY . /\nENTRYPOINT {command}\n")
            run(self._docker, "push", name, timeout_s=BUILD_S, log=self._log)

    def _tree_file(self, path: str) -> Path:
        return debian.tree("machine", debian.MACHINE) / path

    @staticmethod
    def _etcd_image() -> str:
        return str(yaml.safe_load(VALUES.read_text(encoding="utf-8"))["etcd"]["image"])

    def hosts(self) -> str:
        """Return lines for /etc/hosts: the registries of all these images are the one of the run."""
        names = {name.partition("/")[0] for name in (PAUSE_IMAGE, self._etcd_image())}
        return f"{CONTROL_ADDRESS} {' '.join(sorted(names))} {REGISTRY}\n"

    def _build(self, name: str, folder: Path, dockerfile: str) -> None:
        file = self._places.state / "Dockerfile"
        file.write_text(dockerfile)
        run(self._docker, "build", f"--file=/host{file}", f"--tag={name}", f"/host{folder}", timeout_s=BUILD_S,
            log=self._log)


REGISTRY = "registry.example"
"""The registry that the documentation pushes to."""
