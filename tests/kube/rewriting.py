"""What a container is told about its own world, said in terms of this machine.

A pod here shares file system and host names with everybody, so three things in its command, arguments, environment and
mounted ConfigMaps are replaced: the path of a mount by the directory that stands for it, an address that means "any of
mine" by the pod's own, and names that only cluster DNS would know by addresses.  Nothing else is touched.
Stays out: where the directories come from (`volumes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath


class Rewriting:
    """Replaces paths and host names in texts."""

    def __init__(self, paths: Mapping[str, PurePath], hosts: Mapping[str, str]) -> None:
        self._paths = {path.rstrip("/"): str(target) for path, target in paths.items()}
        self._hosts = dict(hosts)
        alternatives = [
            # `/tmp` is neither in `/tmpfs` nor in `/var/tmp`; the longest mount wins.
            *(rf"(?<![\w./-]){re.escape(path)}(?![\w.-])" for path in _longest_first(self._paths)),
            *(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)" for host in _longest_first(self._hosts)),
        ]
        self._pattern = re.compile("|".join(alternatives)) if alternatives else None

    def __call__(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._paths.get(found[0]) or self._hosts[found[0]], text)


def _longest_first(names: Mapping[str, str]) -> list[str]:
    return sorted(names, key=len, reverse=True)


def own_hosts(pod: Mapping[str, object], namespace: str, address: str) -> dict[str, str]:
    """Names under which a pod speaks of itself: every interface, its loopback, and what DNS would call it."""
    spec = pod["spec"]
    assert isinstance(spec, dict)
    hosts = {"0.0.0.0": address, "[::]": address, "127.0.0.1": address}
    if spec.get("subdomain"):
        short = f"{spec.get('hostname') or pod['metadata']['name']}.{spec['subdomain']}"  # type: ignore[index]
        for suffix in ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local"):
            hosts[short + suffix] = address
    return hosts
