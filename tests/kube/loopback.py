"""Loopback addresses of a test run's own, so that every pod has all ports to itself.

Linux answers on all of 127.0.0.0/8.  Stays out: who gets which address.
"""

from __future__ import annotations

import random
import socket

GUARD_PORT = 6400
NETWORKS = range(16, 128)


class LoopbackNetwork:
    """One of the networks 127.x.0.0/16, held as long as this process lives; no other run takes it."""

    def __init__(self) -> None:
        for number in random.sample(NETWORKS, len(NETWORKS)):
            guard = socket.socket()
            try:
                guard.bind((f"127.{number}.0.1", GUARD_PORT))
                guard.listen()  # bound alone would let a second one bind too, where addresses are reused
            except OSError:
                guard.close()
                continue
            self._guard, self._number, self._given = guard, number, 0
            return
        raise RuntimeError("every loopback network is in use by another test run")

    @property
    def server(self) -> str:
        """The address of the control plane."""
        return f"127.{self._number}.0.1"

    def next_address(self) -> str:
        """Return an address that nobody had before."""
        self._given += 1
        high, low = divmod(self._given - 1, 250)
        return f"127.{self._number}.{high + 1}.{low + 1}"

    def release(self) -> None:
        self._guard.close()
