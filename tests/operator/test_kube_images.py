"""Which images the writer of a TidemarkCluster may have nodes run."""

from __future__ import annotations

import pytest
from tidemark_operator.kube.images import OWN_IMAGES, Images
from tidemark_operator.main import parse_flags

OWN = "ghcr.io/tidemark/tidemark-node"
DIGEST = f"sha256:{'0' * 64}"


def allows(image: str | None, *allowed: str) -> bool:
    return not Images(OWN, allowed).problem({"image": image} if image is not None else {})


@pytest.mark.parametrize("image", [
    None, "", OWN, f"{OWN}:0.1.0", f"{OWN}@{DIGEST}", f"{OWN}:0.1.0@{DIGEST}",
])
def test_the_repository_of_nodes_is_allowed_by_itself(image: str | None) -> None:
    assert allows(image)
    assert not OWN_IMAGES.problem({"image": image})


@pytest.mark.parametrize("image", [
    "tidemark-node", "evil.example/tidemark-node:0.1.0", f"{OWN}-evil:0.1.0", f"{OWN}.evil.example/x", f"{OWN}/x",
    f"evil.example/{OWN}", "ghcr.io/tidemark/tidemark-operator:0.1.0", f"{OWN.upper()}:0.1.0", f"{OWN}:", f"{OWN} :1",
    f"{OWN}:1\n", f"{OWN}@sha256:short",
])
def test_any_other_image_is_refused(image: str) -> None:
    assert not allows(image)
    assert image in Images(OWN).problem({"image": image})


@pytest.mark.parametrize(("entry", "image", "allowed"), [
    ("reg.example/team/node", "reg.example/team/node:1", True),
    ("reg.example/team/node", "reg.example/team/node2:1", False),
    ("reg.example/team/node:1", "reg.example/team/node:1", True),
    ("reg.example/team/node:1", "reg.example/team/node:2", False),
    ("reg.example/team/node:1", f"reg.example/team/node:1@{DIGEST}", False),
    (f"reg.example/team/node@{DIGEST}", f"reg.example/team/node@{DIGEST}", True),
    ("reg.example:5000/", "reg.example:5000/any/node:1", True),
    ("reg.example:5000/", "reg.example/any/node:1", False),
    ("reg.example/team/", "reg.example/team/sub/node@" + DIGEST, True),
    ("reg.example/team/", "reg.example/team/../evil/node:1", False),
    ("reg.example/team/", "reg.example/teams/node:1", False),
    ("*", "anything at all", True),
])
def test_an_entry_allows_what_it_says(entry: str, image: str, allowed: bool) -> None:
    assert allows(image, entry) is allowed
    assert allows(f"{OWN}:1", entry), "the repository of nodes stays allowed"


@pytest.mark.parametrize("entry", ["", "/", "team/*", "Not An Image", "reg.example//x", "-x", "a/../b", "**"])
def test_an_entry_that_means_nothing_is_refused_at_the_start(entry: str) -> None:
    with pytest.raises(ValueError, match="allowed image"):
        Images(OWN, (entry,))


def test_flags_say_what_is_allowed() -> None:
    assert parse_flags(["--kubernetes"]).allowed_image == []
    flags = parse_flags(["--kubernetes", "--allowed-image=a/", "--allowed-image=b/c:1"])
    assert flags.allowed_image == ["a/", "b/c:1"]
