"""Errors that are not refusals: our caller's, the peer's, and a format's.  A broken invariant is an assert."""

from __future__ import annotations


class LocalMisuse(Exception):
    """Our own caller broke the contract of `step`."""


class RemoteViolation(Exception):
    """A peer, or a disk, sent what the protocol forbids; the message is dropped and nothing changed."""


class FormatTooOld(Exception):
    """The format that a peer reads has no place for what it would have to be sent; nothing was sent."""


class CorruptEntry(Exception):
    """Stored or received bytes of an entry fail their checksum; they must not be served."""


class FormatTooNew(RemoteViolation, CorruptEntry):
    """Intact bytes are of a format that a newer release wrote.

    A receiver refuses them as any other violation.  They are no damage: a store that holds them must not be discarded.
    """


def unknown_record_format(what: str, found: object, known: int) -> RemoteViolation:
    """Return the error for an operator's record of format `found` where this build reads `known`."""
    says = f"{what} has format {found}, this build reads {known}"
    if isinstance(found, int) and found > known:
        return FormatTooNew(f"{says}: a newer release wrote it, so upgrade the operator to that release or a newer one")
    return RemoteViolation(says)
