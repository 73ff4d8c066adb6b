"""Settings of a node process: the command line, checked.

Stays out: acting on them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tidemark_core.delivery.location import InvalidLocation, Location, parse_location

from .disk import RESERVE_BYTES_MIN

NODE_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
METRICS_OFF = "off"

FRAME_COPIES = 3
"""A frame is held as entries, as bytes and by gRPC, until the caller's side has taken it."""
FRAME_BYTES_MAX_MIN = 64 << 20
"""With less, the largest batch may find no room for ever: one caller may hold half."""

REPAIR_MEMORY_BYTES_MIN = 1 << 20
"""With less, a node would build the digests of a range for nearly every exchange (D85)."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; bytes and seconds."""

    node: str
    data: Path
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    zone: str = ""
    location: str = ""
    cluster: str = ""
    metrics_listen: str = "127.0.0.1:0"
    ready_file: Path | None = None
    log_level: str = "info"
    drain_seconds: float = 10.0
    disk_reserve_bytes: int = RESERVE_BYTES_MIN
    append_bytes_max: int = 256 << 20
    frame_bytes_max: int = 256 << 20
    streams_max: int = 4096
    watches_max: int = 4096
    calls_max: int = 1024
    subscription_names_max: int = 250
    subscription_lease_seconds_max: int = 30 * 86_400
    snapshot_bytes_per_second: int = 200 << 20
    reclaim_seconds: float = 30.0
    reclaim_bytes: int = 16 << 20
    repair_memory_bytes: int = 64 << 20
    tls_dir: Path | None = None


def _address(text: str) -> str:
    """Check host:port; a port of 0 lets the system choose."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port")
    return text


def _metrics_address(text: str) -> str:
    return text if text == METRICS_OFF else _address(text)


def _optional_address(text: str) -> str:
    return text and _address(text)


def _node_id(text: str) -> str:
    if not NODE_ID.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a node id: 1 to 63 letters, digits, dots, dashes or underscores"
        )
    return text


def _location(text: str) -> Location:
    try:
        return parse_location(text)
    except InvalidLocation as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("location: ")) from error


def _place(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Make zone and location say one thing: the zone is a part of the location."""
    location = given.location
    if given.zone and location.zone not in ("", given.zone):
        parser.error(f"argument --location: its zone is {location.zone!r}, --zone is {given.zone!r}")
    given.zone = given.zone or location.zone
    given.location = str(location._replace(zone=given.zone)) if any(location) else ""


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _frames(text: str) -> int:
    frame_bytes = _positive(text)
    if frame_bytes < FRAME_BYTES_MAX_MIN:
        raise argparse.ArgumentTypeError(
            f"{text} bytes are less than {FRAME_BYTES_MAX_MIN}: beside a caller that holds half there must be room for "
            f"the largest batch, counted {FRAME_COPIES} times"
        )
    return frame_bytes


def _reserve(text: str) -> int:
    reserve_bytes = _positive(text)
    if reserve_bytes < RESERVE_BYTES_MIN:
        raise argparse.ArgumentTypeError(
            f"{text} bytes are less than {RESERVE_BYTES_MIN}, which the store needs to rewrite tables on a full disk"
        )
    return reserve_bytes


def _repair_memory(text: str) -> int:
    memory_bytes = _positive(text)
    if memory_bytes < REPAIR_MEMORY_BYTES_MIN:
        raise argparse.ArgumentTypeError(
            f"{text} bytes are less than {REPAIR_MEMORY_BYTES_MIN}: the node would read ranges again for each exchange"
        )
    return memory_bytes


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds between 0 and 3600")
    return seconds


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of a checked address."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line; exits with a message that names the wrong argument."""
    defaults = _defaults()
    parser = argparse.ArgumentParser(prog="tidemark_node", description="The Tidemark node agent.")

    def option(name: str, text: str, **more: object) -> None:
        key = name.replace("-", "_")
        parser.add_argument(f"--{name}", default=defaults.get(key), help=text, **more)  # type: ignore[arg-type]

    option("node", "id of this node, never reused", type=_node_id, required=True)
    option("data", "directory of this node's store", type=Path, required=True)
    option("listen", "host:port of the gRPC services; port 0 picks a free one", type=_address)
    option("advertise", "host:port where others reach this node; default: where it listens", type=_optional_address)
    option("zone", "failure zone")
    option("location", "where this node stands, as in region=eu,zone=a,rack=r1", type=_location)
    option("cluster", "name of the cluster; shard maps of others are refused")
    option("metrics-listen", "host:port of /metrics, /livez and /readyz, or 'off'", type=_metrics_address)
    option("ready-file", "file to write, as JSON, once this node serves", type=Path)
    option("log-level", "debug, info, warning or error", choices=["debug", "info", "warning", "error"])
    option("drain-seconds", "how long a graceful stop waits for leaderships to move", type=_seconds)
    reserve = f"free bytes below which appends are refused, at least {RESERVE_BYTES_MIN}"
    option("disk-reserve-bytes", reserve, type=_reserve)
    shared = "all callers together; one gets at most half of what others leave"
    option("append-bytes-max", f"bytes of unanswered batches this node holds, {shared}", type=_positive)
    frames = f"bytes of memory for frames on their way to readers, at least {FRAME_BYTES_MAX_MIN}, {shared}"
    option("frame-bytes-max", frames, type=_frames)
    option("streams-max", f"open streams of appends and reads, {shared}", type=_positive)
    option("watches-max", f"open watches of the shard map, {shared}", type=_positive)
    option("calls-max", f"other calls at once, {shared}", type=_positive)
    option("subscription-names-max", "subscriptions of one shard that one caller may create", type=_positive)
    option("subscription-lease-seconds-max", "longest lease of a subscription, or of a pin", type=_positive)
    option("snapshot-bytes-per-second", "rate at which this node serves snapshots", type=_positive)
    option("reclaim-seconds", "how often the space of dropped payloads is given back to the disk", type=_seconds)
    option("reclaim-bytes", "of a shard, when payloads of so many bytes were dropped", type=_positive)
    memory = f"bytes of memory for digests of ranges of keyspaces, at least {REPAIR_MEMORY_BYTES_MIN}"
    option("repair-memory-bytes", memory, type=_repair_memory)
    option("tls-dir", "directory of tls.crt, tls.key and ca.crt: nobody gets in without mutual TLS", type=Path)
    given = parser.parse_args(arguments)
    if given.tls_dir is not None and not given.cluster:
        parser.error("--tls-dir needs --cluster: certificates name the cluster")
    _place(parser, given)
    return Settings(**vars(given))


def _defaults() -> dict[str, object]:
    fields = msgspec.structs.fields(Settings)
    return {field.name: field.default for field in fields if field.default is not msgspec.NODEFAULT}
