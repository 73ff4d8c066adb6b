"""Channels and servers: options, method names, hello metadata and the wire version; in the clear or with TLS.

Stays out: what is said on a stream (`frames`, `convert`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import grpc
import grpc.aio

from .descriptors import CONNECTIONS_MAX
from .frames import FRAME_BYTES_MAX
from .tls import Credentials
from .wire_version import WIRE_VERSION, WIRE_VERSION_OLDEST, agreed, mismatch

REPLICATION_LINK = "/tidemark.v1.Replication/Link"
CONTROL_LINK = "/tidemark.v1.Control/Link"
APPEND = "/tidemark.v1.Tidemark/Append"
READ = "/tidemark.v1.Tidemark/Read"
DELIVER = "/tidemark.v1.Tidemark/Deliver"

NODE_KEY = "tidemark-node"
INCARNATION_KEY = "tidemark-incarnation"
ADDRESS_KEY = "tidemark-address"
OPERATOR_KEY = "tidemark-operator"
WIRE_VERSION_KEY = "tidemark-wire-version"
WIRE_VERSION_NEWEST_KEY = "tidemark-wire-version-newest"

_NUMBER = re.compile("[0-9]{1,9}", re.ASCII)

# A frame may be full, and gRPC counts a few bytes around it.  The checkpoint of a snapshot has tens of MiB:
# 100,000 producers have 16 MiB, the marks of a log of 1 TB have 24 MB.
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + (1 << 16)

_SHARED_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)

UNREAD_BYTES = 64 << 10
"""So much of a stream a server takes in before a handler asks for it, for each of thousands that a caller may open.

When a handler asks, gRPC lets the rest of one message come: a frame of 1 MiB takes a round trip, 36 MB/s at 20 ms,
measured (49 with 1 MiB), and the same at 2 ms and less.
"""

HANDSHAKE_TIMEOUT_MS = 10_000
CONNECTION_AGE_MS = 600_000


class Hello(NamedTuple):
    """Who is at the other end of a stream, from its metadata.  Fields that were not said are empty.

    `version` is the wire version of the stream: the newest that both sides speak.
    """

    node: str
    incarnation: str
    address: str
    operator: str
    version: int = WIRE_VERSION


def channel_options() -> list[tuple[str, int]]:
    """Return the options of every client channel."""
    return [
        *_SHARED_OPTIONS,
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.enable_http_proxy", 0),  # nodes are reached directly, whatever the environment says
        ("grpc.enable_retries", 0),     # a repeated call is our own decision
        # A node that comes back must be found within a failover, not within gRPC's default 20 s.
        ("grpc.initial_reconnect_backoff_ms", 50),
        # Despite its name, how long one attempt to connect may take: a busy machine needs more than a moment.
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.max_reconnect_backoff_ms", 250),
        # A new channel connects anew instead of inheriting another one's backoff.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(
    connections_max: int = CONNECTIONS_MAX, handshake_timeout_ms: int = HANDSHAKE_TIMEOUT_MS,
    request_bytes_max: int = MESSAGE_BYTES_MAX,
) -> list[tuple[str, int]]:
    """Return the options of every server.

    A connection whose caller has not said hello after `handshake_timeout_ms` is closed, and so is one above
    `connections_max`.  A message that announces more than `request_bytes_max` is refused before it comes.
    """
    return [
        *_SHARED_OPTIONS,
        ("grpc.max_receive_message_length", request_bytes_max),
        # Else gRPC takes in some MiB of each call on a fast connection, whether a handler wants them or not.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
        # A compressed message would grow in memory, and count for more than its connection brought.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.server_handshake_timeout_ms", handshake_timeout_ms),
        ("grpc.max_allowed_incoming_connections", connections_max),
        # Calls on an older connection go on; the next one needs a new connection, and so a certificate that counts now.
        ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
        ("grpc.so_reuseport", 0),  # two processes on one port is an error, not load balancing
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def open_channel(address: str, tls: Credentials | None = None, *, server_name: str = "") -> grpc.aio.Channel:
    """Return a channel to `address` (host:port); without `tls` it is in the clear.

    The other side's certificate must name `server_name`, else what the TLS settings say, else the host.
    """
    options: list[tuple[str, int | str]] = [*channel_options()]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if name := server_name or tls.server_name:
        options.append(("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(address, tls.for_channel(), options=options)


def bind(server: grpc.aio.Server, address: str, tls: Credentials | None = None) -> int:
    """Bind `server` to `address` (port 0 picks one) and return the port; with `tls` nobody gets in without it."""
    if tls is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, tls.for_server())


def hello_metadata(
    *, node: str = "", incarnation: str = "", address: str = "", operator: str = ""
) -> tuple[tuple[str, str], ...]:
    """Return the metadata with which a side introduces itself; what is empty stays unsaid."""
    said = (
        (NODE_KEY, node), (INCARNATION_KEY, incarnation), (ADDRESS_KEY, address), (OPERATOR_KEY, operator),
    )
    versions = ((WIRE_VERSION_KEY, str(WIRE_VERSION_OLDEST)), (WIRE_VERSION_NEWEST_KEY, str(WIRE_VERSION)))
    return (*((key, value) for key, value in said if value), *versions)


def read_hello(metadata: Iterable[Any] | None) -> Hello:
    """Return who the other side is; raises WireVersionMismatch when there is no common version."""
    said = {key: value for key, value in metadata or () if isinstance(value, str)}
    return Hello(
        said.get(NODE_KEY, ""), said.get(INCARNATION_KEY, ""), said.get(ADDRESS_KEY, ""),
        said.get(OPERATOR_KEY, ""), _agreed(said),
    )


def check_caller(metadata: Iterable[Any] | None) -> int:
    """Return the version that a client and this build speak; one that names none speaks this build's.

    Raises WireVersionMismatch when there is no common version.
    """
    said = {key: value for key, value in metadata or () if isinstance(value, str)}
    return _agreed(said) if WIRE_VERSION_KEY in said else WIRE_VERSION


def _agreed(said: Mapping[str, str]) -> int:
    """Return the version that both sides speak, from the other side's metadata.  Raises WireVersionMismatch."""
    oldest = said.get(WIRE_VERSION_KEY, "")
    newest = said.get(WIRE_VERSION_NEWEST_KEY, oldest)
    if not (_NUMBER.fullmatch(oldest) and _NUMBER.fullmatch(newest)):
        raise mismatch(oldest)
    return agreed(int(oldest), int(newest))


async def answered_hello(call: Any) -> Hello:
    """Wait for the hello in a call's initial metadata.

    Raises ConnectionError when the call ended without one, WireVersionMismatch when there is no common version.
    """
    metadata = await call.initial_metadata()
    if not metadata:
        # A call that was refused shows empty metadata a moment before it shows its status.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                raise ConnectionError(f"{(await call.code()).name}: {await call.details()}")
    return read_hello(metadata)
