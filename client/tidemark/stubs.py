"""Stubs of a service by address; they are kept, for making one costs as much as the rest of a call here.

Stays out: channels (routing), which node is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import grpc.aio

from .routing import Channels

S = TypeVar("S")


class Stubs(Generic[S]):
    """The stubs of one service."""

    def __init__(self, channels: Channels, make: Callable[[grpc.aio.Channel], S]) -> None:
        self._channels = channels
        self._make = make
        self._known: dict[str, tuple[grpc.aio.Channel, S]] = {}

    def at(self, address: str) -> S:
        """Return the calls of a node."""
        channel = self._channels.to(address)
        known = self._known.get(address)
        if known is None or known[0] is not channel:
            known = self._known[address] = channel, self._make(channel)
        return known[1]
