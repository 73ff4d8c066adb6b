"""The command line.  Rooms are in `rooms`, commands in modules of their own, which are loaded when they are called."""

import tidemark_wire  # noqa: F401 - it sets up gRPC, so it comes before whatever imports that
