"""`tidemark` and `kubectl-tidemark`: the entry points.  Light, so that a Ctrl-C while commands load is heard too.

Stays out: the commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

EXTRA = frozenset({"aetcd", "aiohttp", "cryptography", "kopf", "kubernetes"})
"""Libraries of the extra `operator`, by the names they are imported under."""


def main() -> None:
    """Run the command line of this process and exit with its code."""
    sys.exit(_run(_tidemark))


def kubectl() -> None:
    """The same for the plugin of kubectl."""
    sys.exit(_run(_kubectl))


def _tidemark() -> int:
    from .commands import run

    return run()


def _kubectl() -> int:
    from .kubectl.commands import run

    return run()


def _run(program: Callable[[], int]) -> int:
    # gRPC logs to stderr on its own account; what matters of it reaches the user as an error of ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        return program()
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in EXTRA:
            raise
        print(f"error: the Python package {missing.name!r} is not installed", file=sys.stderr)
        print("hint:  pip install 'tidemark[operator]'", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    main()
