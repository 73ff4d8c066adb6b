"""Messages for errors that a cluster, its client library and the local runtime give.

Stays out: errors of the commands themselves (failures).
"""

from __future__ import annotations

import grpc
from tidemark.errors import InvalidArgument, OutcomeUnknown, RequestRefused, TidemarkError, Unavailable, WriteUnknown
from tidemark_core.base.refusals import Reason, Refused
from tidemark_operator.local import LocalRuntimeError
from tidemark_wire.status import advice as advice_of
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.tls import InvalidTls
from tidemark_wire.wire_version import WireVersionMismatch

from .failures import FAILED, UNAVAILABLE, USAGE, Failure

UNAVAILABLE_REASONS = frozenset(
    {
        Reason.NO_LEADER, Reason.OVERLOADED, Reason.SHUTTING_DOWN, Reason.METADATA_UNAVAILABLE, Reason.TRANSFERRING,
        Reason.BEHIND,
    }
)

OPTION_OF_ARGUMENT = {
    "addresses": "--cluster", "from_": "--from", "group": "GROUP", "lease_s": "--lease", "location": "--location",
    "mode": "--mode", "producer": "PRODUCER_HEX", "r": "-r", "sequence": "SEQUENCE", "subscription": "--subscription",
    "timeout_s": "--timeout", "token": "--token", "until": "--until", "w": "-w",
}


def of_refusal(refused: Refused) -> Failure:
    """Return what is shown of a typed no."""
    code = UNAVAILABLE if refused.reason in UNAVAILABLE_REASONS else FAILED
    message = refused.message or refused.reason.value.replace("_", " ").lower()
    return Failure(f"{refused.reason}: {message}", advice_of(refused.reason), code, refused.reason.value)


def describe(error: BaseException) -> Failure | None:
    """Return what is shown of an error, or None when it is not one we expect (a bug)."""
    match error:
        case RequestRefused():
            return of_refusal(error.refused)
        case InvalidArgument():
            return _of_argument(error)
        case Unavailable() | OutcomeUnknown() | WriteUnknown():
            return Failure(error.message, error.advice, UNAVAILABLE, error.reason)
        case TidemarkError():
            return Failure(str(error), error.advice, FAILED, error.reason)
        case LocalRuntimeError():
            return Failure(str(error), error.advice, FAILED, "LOCAL_RUNTIME")
        case grpc.RpcError():
            return _of_rpc_error(error)
        case WireVersionMismatch():
            advice = "Run the same Tidemark release on both sides, or two releases that follow each other."
            return Failure(str(error), advice, FAILED, "WIRE_VERSION")
        case InvalidTls():
            return Failure(str(error), "Check --tls-ca, --tls-cert and --tls-key.", USAGE, "INVALID_TLS")
    return None


def _of_argument(error: InvalidArgument) -> Failure:
    """Return a refusal of the library with the name of the option in place of the argument's."""
    option = OPTION_OF_ARGUMENT.get(error.field)
    if option is None:
        return Failure(error.message, error.advice, USAGE, error.reason)
    advice = error.advice.replace(f"Correct {error.field} and call again.", f"Correct {option}.")
    if error.field in ("r", "w"):
        advice = advice.replace(f"Leave {error.field} away", f"Leave {option} away")
    return Failure(f"{option}{error.message.removeprefix(error.field)}", advice, USAGE, error.reason)


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
