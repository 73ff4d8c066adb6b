"""Entry of `python -m tidemark_operator`."""

import os

from tidemark_wire import extras

# gRPC would write a line of its own for every handshake that fails, as often as somebody tries.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

with extras.needs("operator"):
    from .main import main

main()
