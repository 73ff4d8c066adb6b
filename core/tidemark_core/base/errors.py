"""Errors of the two kinds that are not refusals: our caller's and the peer's.  A broken invariant is an assert."""

from __future__ import annotations


class LocalMisuse(Exception):
    """Our own caller broke the contract of `step`."""


class RemoteViolation(Exception):
    """A peer, or a disk, sent what the protocol forbids; the message is dropped and nothing changed."""


class CorruptEntry(Exception):
    """Stored or received bytes of an entry fail their checksum; they must not be served."""
