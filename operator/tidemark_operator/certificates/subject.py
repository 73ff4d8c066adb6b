"""Who gets a certificate, and under which names and addresses it is dialed.

Stays out: certificates.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark_wire.identity import Identity


@dataclass(frozen=True, slots=True)
class Subject:
    """What a certificate is to say; only who serves needs names and addresses."""

    identity: Identity
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()
