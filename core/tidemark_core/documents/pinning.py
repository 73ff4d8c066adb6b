"""Pinning: the bytes of PIN and UNPIN, and whom the fold lets begin, renew and end a pin (rules U70, U70b, U70c).

    entry    payload
    PIN      lease in ms (8 bytes), name, and behind a zero byte the owner
    UNPIN    why it ends (1 byte), name, and behind a zero byte the owner whose pin alone may end

Without an owner both end with the name.  Leaders write them, and a fold ignores one that it cannot read.
Stays out: what a pin keeps (`fold`), when a lease is over (`document_shard`), the name of a caller (the node).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from ..base.refusals import Reason, Refused
from .payload import TTL_MS_MAX, MalformedWrites
from .rows import Pin

PINS_MAX = 64
"""Active pins of one shard; a PIN of one more name has no effect."""

NAME_BYTES_MAX = 128
LEASE_MS_MAX = TTL_MS_MAX
_LEASE = struct.Struct(">Q")


class Ended(IntEnum):
    """Why a pin ends (U70)."""

    ASKED = 1
    LEASE = 2
    BYTES = 3


class Asked(NamedTuple):
    """The content of a PIN or an UNPIN; `owner` is empty where it names none, `ttl_ms` is 0 in an UNPIN."""

    name: str
    owner: str = ""
    ttl_ms: int = 0


def wrong_pin(name: str, ttl_ms: int) -> str | None:
    """Return what is wrong with a pin's name or lease, naming the field, or None."""
    if not name or wrong_owner(name):
        return f"name is {name[:NAME_BYTES_MAX + 1]!r}, must have 1 to {NAME_BYTES_MAX} printable ASCII characters"
    if not 0 < ttl_ms <= LEASE_MS_MAX:
        return f"ttl_ms is {ttl_ms}, must be 1 to {LEASE_MS_MAX}"
    return None


def wrong_owner(owner: str) -> bool:
    """Say whether no owner can have this name; an empty one is right, and names none."""
    return len(owner) > NAME_BYTES_MAX or not owner.isascii() or not owner.isprintable()


def encode_pin(name: str, ttl_ms: int, owner: str = "") -> bytes:
    """Return the payload of PIN."""
    return _LEASE.pack(ttl_ms) + _named(name, owner)


def decode_pin(payload: bytes) -> Asked:
    """Read a PIN; raises MalformedWrites."""
    if len(payload) <= _LEASE.size:
        raise MalformedWrites(f"PIN has {len(payload)} bytes")
    (ttl_ms,) = _LEASE.unpack_from(payload)
    return _asked(payload[_LEASE.size:], ttl_ms, ttl_ms)


def encode_unpin(name: str, reason: Ended, owner: str = "") -> bytes:
    """Return the payload of UNPIN."""
    return bytes((reason,)) + _named(name, owner)


def decode_unpin(payload: bytes) -> Asked:
    """Read an UNPIN; raises MalformedWrites."""
    if len(payload) < 2:
        raise MalformedWrites(f"UNPIN has {len(payload)} bytes")
    return _asked(payload[1:], 0, 1)


def _named(name: str, owner: str) -> bytes:
    return b"\0".join(each.encode("ascii") for each in (name, owner) if each)


def _asked(data: bytes, ttl_ms: int, checked_ttl_ms: int) -> Asked:
    name, named, owner = data.decode("ascii", "replace").partition("\0")
    if (wrong := wrong_pin(name, checked_ttl_ms)) is not None:
        raise MalformedWrites(wrong)
    if wrong_owner(owner) or (named and not owner):
        raise MalformedWrites(f"owner is {owner[:NAME_BYTES_MAX + 1]!r}")
    return Asked(name, owner, ttl_ms)


def why_not_pinned(pins: Mapping[str, Pin], name: str, owner: str) -> Refused | None:
    """Say why `owner` may not begin or renew the pin `name` beside these, None where it may (U70b, U70c)."""
    known = pins.get(name)
    if known is not None:
        return _not_the_owner(name, owner, known)
    own = sum(pin.owner == owner for pin in pins.values()) if owner else 0
    if len(pins) >= PINS_MAX:
        what = f"{PINS_MAX} pins are active, a shard has no more"
    elif owner and 2 * (own + 1) > PINS_MAX - (len(pins) - own):
        what = f"{own} pins of this shard are yours, half of what the others leave of {PINS_MAX}"
    else:
        return None
    return Refused(Reason.TOO_MANY_PINS, what)


def why_not_unpinned(pins: Mapping[str, Pin], name: str, owner: str) -> Refused | None:
    """Say why `owner` may not end the pin `name`, None where it may; an admin names no owner (U70b)."""
    known = pins.get(name)
    return _not_the_owner(name, owner, known) if known is not None else None


def _not_the_owner(name: str, owner: str, pin: Pin) -> Refused | None:
    if not owner or pin.owner in ("", owner):
        return None
    what = f"pin {name!r} is another caller's: its owner renews it, its owner and admins of the group end it"
    return Refused(Reason.PERMISSION_DENIED, what)
