"""From whatever went wrong to one line, one hint and an exit code.

0 is success, 1 a refusal or a failure, 2 wrong usage, 3 not reachable or out of time, 130 Ctrl-C.
Stays out: printing (output).
"""

from __future__ import annotations

from typing import NamedTuple

import grpc
from tidemark.errors import InvalidArgument, OutcomeUnknown, RequestRefused, TidemarkError, Unavailable
from tidemark_core.base.refusals import Reason, Refused
from tidemark_operator.local import LocalRuntimeError
from tidemark_wire.channel import WireVersionMismatch
from tidemark_wire.status import advice as advice_of
from tidemark_wire.status import refusal_from_rpc_error

OK, FAILED, USAGE, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 3, 130

UNAVAILABLE_REASONS = frozenset(
    {
        Reason.NO_LEADER, Reason.OVERLOADED, Reason.SHUTTING_DOWN, Reason.METADATA_UNAVAILABLE, Reason.TRANSFERRING,
        Reason.BEHIND,
    }
)


class CommandFailed(Exception):
    """A command gives up: `message` is one line, `advice` what to do next."""

    def __init__(self, message: str, advice: str = "", *, code: int = FAILED, reason: str = "FAILED") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.code = code
        self.reason = reason


class Failure(NamedTuple):
    """What is shown of an error."""

    message: str
    advice: str
    code: int
    reason: str


def of_refusal(refused: Refused) -> Failure:
    """Return what is shown of a typed no."""
    code = UNAVAILABLE if refused.reason in UNAVAILABLE_REASONS else FAILED
    message = refused.message or refused.reason.value.replace("_", " ").lower()
    return Failure(f"{refused.reason}: {message}", advice_of(refused.reason), code, refused.reason.value)


def describe(error: BaseException) -> Failure | None:
    """Return what is shown of an error, or None when it is not one we expect (a bug)."""
    match error:
        case CommandFailed():
            return Failure(error.message, error.advice, error.code, error.reason)
        case RequestRefused():
            return of_refusal(error.refused)
        case InvalidArgument():
            return Failure(error.message, error.advice, USAGE, error.reason)
        case Unavailable() | OutcomeUnknown():
            return Failure(error.message, error.advice, UNAVAILABLE, error.reason)
        case TidemarkError():
            return Failure(str(error), error.advice, FAILED, error.reason)
        case LocalRuntimeError():
            return Failure(str(error), error.advice, FAILED, "LOCAL_RUNTIME")
        case grpc.RpcError():
            return _of_rpc_error(error)
        case WireVersionMismatch():
            return Failure(str(error), "Run the same Tidemark release on both sides.", FAILED, "WIRE_VERSION")
        case OSError():
            where = f" ({error.filename})" if error.filename else ""
            return Failure(f"{error.strerror or error}{where}", "", FAILED, "OS_ERROR")
    return None


def _of_rpc_error(error: grpc.RpcError) -> Failure:
    hinted = refusal_from_rpc_error(error)
    if hinted is not None:
        return of_refusal(hinted.refused)
    code, details = error.code(), error.details()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        advice = "Check that the cluster runs (`tidemark dev status`) and that the address is right."
        return Failure(f"the cluster does not answer: {details}", advice, UNAVAILABLE, "UNAVAILABLE")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        advice = "Give the address of the operator's Admin service, or leave --cluster away in a local cluster."
        return Failure(f"that address does not offer this service: {details}", advice, FAILED, "UNIMPLEMENTED")
    return Failure(f"{code.name}: {details}", "", FAILED, code.name)
