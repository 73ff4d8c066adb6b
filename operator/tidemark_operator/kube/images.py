"""Which images the nodes of a cluster may run.

A node's pod mounts a certificate of the cluster, so a program in that pod may do all that a node may.  The writer of a
TidemarkCluster chooses among images that the installer of the operator allows.
Pure.  Stays out: refusing a spec (`run`), the pod itself (`builders`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .builders import IMAGE

ANY = "*"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = rf"{_PART}(?::[0-9]{{1,5}})?(?:/{_PART})*"
_TAG = r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"@sha256:[0-9a-f]{64}"
_WHOLE = re.compile(rf"({_REPOSITORY})({_TAG})?({_DIGEST})?")
_BELOW = re.compile(rf"{_REPOSITORY}/")


@dataclass(frozen=True, slots=True)
class Images:
    """`nodes` is the repository of nodes without a tag; `allowed` are other images that `spec.image` may name.

    An entry of `allowed` is a repository, which allows its every tag and digest; one image with its tag or digest; the
    beginning of repositories, which ends with a slash; or `*`.  Raises ValueError for anything else.
    """

    nodes: str = IMAGE
    allowed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for entry in self.allowed:
            if entry != ANY and not _BELOW.fullmatch(entry) and not _WHOLE.fullmatch(entry):
                raise ValueError(
                    f"allowed image {entry!r} is no repository, no image with a tag or digest, no beginning with a "
                    "slash at its end, and not *")

    def problem(self, spec: Mapping[str, Any]) -> str:
        """Return why a cluster may not run the image that its spec names; nothing where it may, or names none."""
        image = spec.get("image")
        if not image or any(self._allows(entry, image) for entry in (self.nodes, *self.allowed)):
            return ""
        return (
            f"spec.image: {image} is not allowed; this operator allows {', '.join((self.nodes, *self.allowed))} "
            "(security.allowedImages of the chart)")

    @staticmethod
    def _allows(entry: str, image: str) -> bool:
        if entry in (ANY, image):
            return True
        parts = _WHOLE.fullmatch(image)
        if parts is None:
            return False
        return parts[1] == entry or (entry.endswith("/") and parts[1].startswith(entry))


OWN_IMAGES = Images()
"""The images of an operator without flags: the repository of this project's nodes."""
