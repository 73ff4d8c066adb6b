"""Status and channel: a refusal survives gRPC whole, and another wire version is refused with a message."""

from __future__ import annotations

import grpc
import pytest
from tidemark_core.base.refusals import Reason, Refused
from tidemark_wire import channel, status


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_code_and_advice(reason: Reason):
    error = status.to_rpc_error(Refused(reason, "why"))
    assert error.code is not grpc.StatusCode.OK
    assert status.advice(reason).endswith(".")
    assert error.details == f"{reason}: why"


async def test_refusal_crosses_grpc_with_its_hints():
    refused = Refused(Reason.NOT_LEADER, "node b leads", 7, -1, 50)
    error = await refused_call(refused, "b", "127.0.0.1:7", 12)
    assert status.HintedRefusal(refused, "b", "127.0.0.1:7", 12) == status.refusal_from_rpc_error(error)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("letter", ["x", "\u20ac", "\ud800"])
async def test_long_text_is_cut_and_the_refusal_still_arrives(letter: str):
    error = await refused_call(Refused(Reason.INVALID_SPEC, "spec." + letter * 200_000))
    hinted = status.refusal_from_rpc_error(error)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert hinted is not None
    assert hinted.refused.message.startswith("spec.") and hinted.refused.message.endswith("...")


async def refused_call(refused: Refused, *hints: object) -> grpc.aio.AioRpcError:
    """Refuse a call on a real server and return what the caller gets."""

    async def refuse(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(*status.to_rpc_error(refused, *hints))

    server = grpc.aio.server(options=channel.server_options())
    handler = grpc.method_handlers_generic_handler("t.S", {"M": grpc.unary_unary_rpc_method_handler(refuse)})
    server.add_generic_rpc_handlers((handler,))
    port = channel.bind(server, "127.0.0.1:0")
    await server.start()
    async with channel.open_channel(f"127.0.0.1:{port}") as opened:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await opened.unary_unary("/t.S/M")(b"")
    await server.stop(None)
    return caught.value


async def test_failure_of_grpc_itself_is_not_a_refusal():
    async with channel.open_channel("127.0.0.1:1") as opened:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await opened.unary_unary("/t.S/M")(b"", timeout=1)
    assert status.refusal_from_rpc_error(caught.value) is None


def test_unreadable_refusal_is_none():
    assert status.refusal_from_metadata([(status.REFUSAL_KEY, b"\xff\xff")]) is None
    assert status.refusal_from_metadata(None) is None


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.QUORUM_TIMEOUT, grpc.StatusCode.DEADLINE_EXCEEDED), (Reason.ROLLED_BACK, grpc.StatusCode.ABORTED),
        (Reason.PRODUCER_ROLLED_BACK, grpc.StatusCode.FAILED_PRECONDITION),
        (Reason.ROLLING_BACK, grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_outcome_of_an_append_crosses_grpc(reason: Reason, code: grpc.StatusCode):
    refused = Refused(reason, "shard 0", 7, 123, 20)
    error = await refused_call(refused)
    hinted = status.refusal_from_rpc_error(error)
    assert hinted is not None and hinted.refused == refused
    assert error.code() is code


def test_advice_on_an_unknown_outcome_never_asks_for_a_new_sequence():
    """A new sequence after a timeout writes the batch twice; after a rollback only a new one can be written."""
    assert "same producer and sequence" in status.advice(Reason.QUORUM_TIMEOUT)
    assert "new sequence" in status.advice(Reason.ROLLED_BACK)
    assert "`resume_after`" in status.advice(Reason.PRODUCER_ROLLED_BACK)
