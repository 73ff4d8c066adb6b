"""`python -m tidemark_node`."""

import os
import sys

from tidemark_wire import extras

# gRPC would write a line of its own for every handshake that fails, as often as somebody tries.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

with extras.needs("node"):
    from .main import main

sys.exit(main())
