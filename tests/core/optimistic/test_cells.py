from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.optimistic.cells import (
    Element,
    Meta,
    Retracted,
    Retraction,
    StringCell,
    decode_element,
    decode_meta,
    decode_retracted,
    decode_string,
    encode_element,
    encode_meta,
    encode_retracted,
    encode_string,
)

from .cases import A, B, dead, elements, live, metas, stamp, strings


@given(strings)
def test_a_string_survives_its_bytes(cell: StringCell) -> None:
    assert cell == decode_string(encode_string(cell))


@given(elements)
def test_an_element_survives_its_bytes_which_do_not_depend_on_the_order_of_its_cells(row: Element) -> None:
    data = encode_element(row)

    assert row == decode_element(data)
    assert data == encode_element(dict(reversed(list(row.items()))))


@given(metas)
def test_a_meta_row_survives_its_bytes(meta: Meta) -> None:
    assert meta == decode_meta(encode_meta(meta))


ROWS: list[tuple[bytes, Callable[[bytes], Any]]] = [
    (encode_element({A: live(1, stamp(1), b"value"), B: dead(2, stamp(2, B))}), decode_element),
    (encode_meta(Meta(stamp(1), stamp(2))), decode_meta),
    (encode_retracted(Retracted((Retraction(stamp(1)), Retraction(stamp(2), stamp(1))))), decode_retracted),
    (encode_string(StringCell(stamp(1), False, 0, b"")), decode_string),
]


@pytest.mark.parametrize(("data", "decode"), ROWS, ids=["element", "meta", "retracted", "string"])
def test_bytes_that_are_cut_short_anywhere_are_refused(data: bytes, decode: Callable[[bytes], Any]) -> None:
    for size in range(len(data)):
        with pytest.raises(RemoteViolation, match="cut short"):
            decode(data[:size])


@pytest.mark.parametrize(("data", "decode"), ROWS[:3], ids=["element", "meta", "retracted"])
def test_bytes_behind_a_row_are_refused(data: bytes, decode: Callable[[bytes], Any]) -> None:
    with pytest.raises(RemoteViolation, match="3 bytes follow"):
        decode(data + b"abc")


@given(st.binary(max_size=120))
def test_no_bytes_of_another_node_end_otherwise_than_in_a_row_or_a_refusal(data: bytes) -> None:
    for decode in (decode_string, decode_element, decode_meta):
        try:
            decode(data)
        except RemoteViolation as refused:
            assert str(refused)


def test_an_actor_that_is_named_twice_is_refused() -> None:
    once = encode_element({A: live(1, stamp(1))})

    with pytest.raises(RemoteViolation, match="two cells of the actor 'a'"):
        decode_element(b"\0\0\0\2" + once[4:] * 2)


def test_a_name_that_is_no_text_is_refused() -> None:
    data = encode_meta(Meta(stamp(1), stamp(2))).replace(b"a", b"\xff")

    with pytest.raises(RemoteViolation, match="no UTF-8"):
        decode_meta(data)


@pytest.mark.parametrize("stamps", [(2, 1), (1, 1)])
def test_retractions_out_of_order_are_refused(stamps: tuple[int, int]) -> None:
    data = encode_retracted(Retracted(tuple(Retraction(stamp(ms)) for ms in stamps)))
    with pytest.raises(RemoteViolation, match="out of order"):
        decode_retracted(data)


def test_a_retraction_by_a_greater_stamp_is_refused() -> None:
    itself = Retracted((Retraction(stamp(1), stamp(1)),))
    assert itself == decode_retracted(encode_retracted(itself))
    with pytest.raises(RemoteViolation, match="below it"):
        decode_retracted(encode_retracted(Retracted((Retraction(stamp(1), stamp(2)),))))
