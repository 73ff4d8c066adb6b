"""From whatever went wrong to one line, one hint and an exit code.

0 is success, 1 a refusal or a failure, 2 wrong usage, 3 not reachable or out of time, 130 Ctrl-C.
Stays out: printing (output), errors of a cluster and its clients (cluster_failures).
"""

from __future__ import annotations

from typing import NamedTuple

OK, FAILED, USAGE, UNAVAILABLE, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 130, 143


class CommandFailed(Exception):
    """A command gives up: `message` is one line, `advice` what to do next."""

    def __init__(self, message: str, advice: str = "", *, code: int = FAILED, reason: str = "FAILED") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.code = code
        self.reason = reason


class Failure(NamedTuple):
    """The parts of an error that are shown."""

    message: str
    advice: str
    code: int
    reason: str


def describe(error: BaseException) -> Failure | None:
    """Return what is shown of an error, or None when it is not one we expect (a bug)."""
    match error:
        case CommandFailed():
            return Failure(error.message, error.advice, error.code, error.reason)
        case OSError():
            where = f" ({error.filename})" if error.filename else ""
            return Failure(f"{error.strerror or error}{where}", "", FAILED, "OS_ERROR")
    from .cluster_failures import describe as describe_of_cluster  # takes a second to load, and is rarely needed

    return describe_of_cluster(error)
