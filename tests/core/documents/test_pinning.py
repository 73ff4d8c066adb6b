"""Pinning: the bytes of PIN and UNPIN, and whom the fold lets begin, renew and end a pin (rules U70, U70b, U70c)."""

from __future__ import annotations

import pytest
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.refusals import Reason
from tidemark_core.documents.checking import check_row
from tidemark_core.documents.payload import MalformedWrites
from tidemark_core.documents.pinning import (
    PINS_MAX,
    Asked,
    Ended,
    decode_pin,
    decode_unpin,
    encode_pin,
    encode_unpin,
    why_not_pinned,
    why_not_unpinned,
)
from tidemark_core.documents.rows import PINS, Pin, pin_key

from tests.core.documents.support import DocumentAuthor, Documents
from tests.core.support import SHARD

EVE, SHOP = "client/eve", "client/shop"


def pins_of(*owners: str) -> dict[str, Pin]:
    return {f"p{number}": Pin(number, 10, 1, 0, 0, owner=owner) for number, owner in enumerate(owners)}


def test_u70_a_pin_says_name_and_lease() -> None:
    """And its owner, where one is named (U70b); without an owner the bytes are those from before owners."""
    assert decode_pin(encode_pin("nightly backup", 5_000)) == Asked("nightly backup", "", 5_000)
    assert decode_unpin(encode_unpin("nightly", Ended.LEASE)) == Asked("nightly")
    assert decode_pin(encode_pin("n", 5, EVE)) == Asked("n", EVE, 5)
    assert decode_unpin(encode_unpin("n", Ended.ASKED, EVE)) == Asked("n", EVE)
    assert encode_pin("n", 5) == bytes((0, 0, 0, 0, 0, 0, 0, 5)) + b"n"
    assert encode_unpin("n", Ended.ASKED) == b"\x01n"
    for data in (
        b"", bytes(8), bytes(8) + b"name", encode_pin("n", 5)[:8], encode_pin("n", 5) + b"\xff", bytes(9),
        encode_pin("n", 5) + b"\0", encode_pin("n", 5, EVE) + b"\0", encode_pin("n", 5, EVE) + b"e" * 128,
    ):
        with pytest.raises(MalformedWrites):
            decode_pin(data)
    for data in (b"\x01", b"\x01\0eve", encode_unpin("n", Ended.ASKED) + b"\0"):
        with pytest.raises(MalformedWrites):
            decode_unpin(data)


def test_u70c_one_owner_has_half_of_what_the_others_leave() -> None:
    author, documents = DocumentAuthor(), Documents()
    for owner in (EVE, SHOP, "client/third"):
        for number in range(PINS_MAX):
            author.pin(f"{owner} {number}", owner=owner)
    documents.fold(author)
    pins = documents.summary.pins
    assert [sum(pin.owner == owner for pin in pins.values()) for owner in (EVE, SHOP, "client/third")] == [32, 16, 8]

    refused = why_not_pinned(pins, "one more", EVE)
    assert refused is not None and refused.reason is Reason.TOO_MANY_PINS and "32 pins" in refused.message
    assert why_not_pinned(pins, f"{EVE} 0", EVE) is None, "a renewal takes no room"
    assert why_not_pinned(pins, "one more", "client/fourth") is None
    assert why_not_pinned(pins, "one more", "") is None, "without owners only the whole is bounded"
    full = pins_of(*[""] * PINS_MAX)
    refused = why_not_pinned(full, "one more", EVE)
    assert refused is not None and refused.reason is Reason.TOO_MANY_PINS and f"{PINS_MAX} pins" in refused.message


def test_u70b_another_owner_neither_renews_nor_ends_a_pin() -> None:
    author, documents = DocumentAuthor(), Documents()
    author.pin("nightly", 100, owner=SHOP)
    author.pin("nightly", 1, logged_ms=50, owner=EVE)
    author.unpin("nightly", EVE)
    documents.fold(author)
    assert documents.summary.pins == {"nightly": Pin(0, 100, 1, 0, 0, owner=SHOP)}

    author.pin("nightly", 100, logged_ms=60, owner=SHOP)
    documents.fold(author)
    assert documents.summary.pins["nightly"].until_ms == 160
    author.unpin("nightly", SHOP)
    author.pin("nightly", 100, owner=SHOP)
    author.pin("everybody's", 100)
    author.unpin("everybody's", EVE)
    documents.fold(author)
    assert set(documents.summary.pins) == {"nightly"}
    author.unpin("nightly")
    documents.fold(author)
    assert not documents.summary.pins, "an UNPIN without an owner ends any"


def test_u70b_the_refusal_names_the_pin_and_no_other_owner() -> None:
    pins = pins_of(SHOP, "")
    for refused in (why_not_pinned(pins, "p0", EVE), why_not_unpinned(pins, "p0", EVE)):
        assert refused is not None and refused.reason is Reason.PERMISSION_DENIED
        assert "'p0'" in refused.message and SHOP not in refused.message
    for owner in (SHOP, ""):
        assert why_not_pinned(pins, "p0", owner) is why_not_unpinned(pins, "p0", owner) is None
    assert why_not_unpinned(pins, "p1", EVE) is why_not_unpinned(pins, "gone", EVE) is None


def test_u70b_the_row_of_a_pin_has_its_owner() -> None:
    pin = Pin(7, 10, 1, 3, 1 << 100, 40, SHOP)
    assert Pin.decode(pin.encode()) == pin
    nobodys = Pin(7, 10, 1, 3, 1 << 100, 40)
    assert Pin.decode(nobodys.encode()) == nobodys and pin.encode() == nobodys.encode() + SHOP.encode()
    check_row(SHARD, PINS, pin_key(SHARD, "p"), pin.encode())
    for owner in (b"\xff", b"\n", b"e" * 129):
        with pytest.raises(RemoteViolation, match="U47"):
            check_row(SHARD, PINS, pin_key(SHARD, "p"), nobodys.encode() + owner)
