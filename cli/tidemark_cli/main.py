"""`tidemark` and `kubectl-tidemark`: the entry points.  Light, so that a Ctrl-C while commands load is heard too.

Stays out: the commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from tidemark_wire import extras


def main() -> None:
    """Run the command line of this process and exit with its code."""
    sys.exit(_run(_tidemark, "cli"))


def kubectl() -> None:
    """The same for the plugin of kubectl."""
    sys.exit(_run(_kubectl, "cli", "operator"))


def _tidemark() -> int:
    from .commands import run

    return run()


def _kubectl() -> int:
    from .kubectl.commands import run

    return run()


def _run(program: Callable[[], int], *wanted: str) -> int:
    # gRPC logs to stderr on its own account; what matters of it reaches the user as an error of ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        if not _streams():
            return 1
        with extras.needs(*wanted):
            return program()
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            print('{"error": "INTERRUPTED", "message": "interrupted", "advice": ""}')
        print("error: interrupted", file=sys.stderr)
        return 130


def _streams() -> bool:
    """Give closed standard streams a place that no other file takes; False when the result has none."""
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            os.open(os.devnull, os.O_RDWR)  # takes `number`, the lowest that is free
            if number == 2:
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        print("error: standard output is closed", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    main()
