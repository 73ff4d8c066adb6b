"""Turns the .proto files of `protos/` into the modules that are checked in next to them.

Run it through `make generate`.  The result depends on the versions of grpcio-tools and mypy-protobuf, which is why
pyproject.toml pins these packages exactly: the freshness test compares byte by byte.
"""

from __future__ import annotations

import argparse
import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

REPOSITORY = Path(__file__).resolve().parent.parent
INCLUDE_ROOT = REPOSITORY / "protos"


def proto_files() -> list[Path]:
    """Every .proto file, relative to the include root, in a fixed order."""
    return sorted(path.relative_to(INCLUDE_ROOT) for path in INCLUDE_ROOT.rglob("*.proto"))


def generate(output: Path) -> list[Path]:
    """Write `*_pb2.py`, `*_pb2_grpc.py` and a `.pyi` of each below `output`; return their paths."""
    sources = proto_files()
    if not sources:
        raise SystemExit(f"no .proto file below {INCLUDE_ROOT}")
    well_known_types = resources.files("grpc_tools") / "_proto"
    plugins = Path(sys.executable).parent
    arguments = [
        "protoc",
        *(f"--plugin={plugins / plugin}" for plugin in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")),
        f"--proto_path={INCLUDE_ROOT}",
        f"--proto_path={well_known_types}",
        f"--python_out={output}",
        f"--mypy_out=quiet:{output}",
        f"--grpc_python_out={output}",
        f"--mypy_grpc_out=quiet,only_async:{output}",
        *(source.as_posix() for source in sources),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc refused the .proto files; its message is above")
    return generated_files(output)


def generated_files(root: Path) -> list[Path]:
    """The generated modules below `root`, relative to it."""
    return sorted(path.relative_to(root) for path in root.rglob("*_pb2*.py*") if path.suffix in {".py", ".pyi"})


def main() -> int:
    """Regenerate in place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=INCLUDE_ROOT, help="folder to write below")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for path in generate(arguments.output):
        print(arguments.output / path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
