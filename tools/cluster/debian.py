"""Debian trees: folders that debootstrap fills once, for machines and for the base image.

`enter()` gives the command that runs something in a tree.  Stays out: what runs there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from .commands import run, say
from .places import cache

SUITE = "bookworm"
"""That of the Dockerfile's base image."""
MIRROR = "http://deb.debian.org/debian"
MACHINE = (
    "buildah", "ca-certificates", "catatonit", "conntrack", "containerd", "containernetworking-plugins",
    "docker-registry", "ethtool", "iproute2", "iptables", "mount", "nftables", "procps", "runc", "socat", "tini",
    "util-linux",
)
PYTHON = ("ca-certificates", "python-is-python3", "python3", "python3-pip", "python3-venv")
"""The stand-in for the official Python image where no registry can be reached."""
ENTER = Path(__file__).with_name("enter.sh")


def available() -> str | None:
    """Return why debootstrap cannot be used here, or None."""
    if shutil.which("debootstrap") or (cache() / "debootstrap").exists() or shutil.which("apt-get"):
        return None
    return "no debootstrap, and no apt-get to download it with"


def tree(name: str, packages: Sequence[str]) -> Path:
    """Return a Debian tree with these packages; the first time takes a minute or two and needs Debian's mirror."""
    mark = hashlib.sha256(repr((SUITE, MIRROR, sorted(packages))).encode()).hexdigest()[:12]
    folder = cache() / f"{name}-{SUITE}-{mark}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            say(f"filling {folder} by debootstrap (once; about a minute)")
            partial = folder.with_suffix(".partial")
            run("rm", "-rf", "--one-file-system", partial)
            program, environment = _debootstrap()
            run("nice", program, "--variant=minbase", f"--include={','.join(packages)}", SUITE, partial, MIRROR,
                timeout_s=1800, environment=environment)
            run("rm", "-rf", partial / "var/cache/apt/archives", partial / "var/lib/apt/lists")
            partial.rename(folder)
    return folder


def _debootstrap() -> tuple[str, dict[str, str]]:
    if found := shutil.which("debootstrap"):
        return found, {}
    folder = cache() / "debootstrap"
    if not folder.exists():
        download = cache() / "download"
        shutil.rmtree(download, ignore_errors=True)
        download.mkdir()
        run("apt-get", "download", "debootstrap", cwd=download)
        (package,) = download.glob("debootstrap_*.deb")
        run("dpkg-deb", "-x", package, download / "tree")
        (download / "tree").rename(folder)
        shutil.rmtree(download)
    return str(folder / "usr/sbin/debootstrap"), {
        "DEBOOTSTRAP_DIR": str(folder / "usr/share/debootstrap"),
        "PATH": os.pathsep.join(["/usr/sbin", "/sbin", os.environ.get("PATH", os.defpath)])}


def enter(root: Path, *binds: tuple[Path, str], resolv_conf: Path | None = None) -> list[str]:
    """Return how a command begins that runs in a throwaway copy of a tree, with the machine's files below /host.

    `binds` are folders of this machine and where the command sees them.
    """
    words = ["unshare", "--mount", "--propagation=private", "--", "bash", str(ENTER), str(root)]
    words.append(str(resolv_conf or "/etc/resolv.conf"))
    words += [f"{source}:{target}" for source, target in binds]
    return [*words, "--"]
