"""`tidemark`: the entry point.  Light, so that a Ctrl-C while the commands are still being loaded is heard too."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line of this process and exit with its code."""
    # gRPC logs to stderr on its own account; what matters of it reaches the user as an error of ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from .commands import run

        code = run()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
