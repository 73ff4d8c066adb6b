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


def test_hello_round_trip():
    metadata = channel.hello_metadata(node="a", incarnation="i", address="127.0.0.1:1")
    assert channel.Hello("a", "i", "127.0.0.1:1", "") == channel.read_hello(metadata)


@pytest.mark.parametrize("said", ["", "2", "x"])
def test_other_wire_version_is_refused_with_a_message(said: str):
    with pytest.raises(channel.WireVersionMismatch, match="same Tidemark release"):
        channel.read_hello([(channel.WIRE_VERSION_KEY, said)])
