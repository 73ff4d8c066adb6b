"""What goes over the wire: frames, protobuf conversion, refusals as gRPC statuses, channels.

Stays out of this house: who says what and when.
"""

import os

# gRPC reads this when it is imported.  Its fork handlers crash a child between fork and exec while other threads are in
# calls, and uvloop starts processes by a fork.  No forked child uses the connections of its parent (`WrongLoop`).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
