"""Positions and their printable token (rule U55)."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.ids import shard_id
from tidemark_core.upr.history import START, Point
from tidemark_core.upr.positions import (
    SHARDS_MAX,
    TOKEN_CHARS_MAX,
    History,
    Partial,
    Position,
    PositionRefused,
    Scope,
    Token,
    decode,
    encode,
    wrong_partial,
    wrong_point,
)

LINEAGE = bytes(range(1, 17))
GROUP = 7
SCOPE = Scope(GROUP, bytes(range(16)), History.LATEST)
TOKEN = Token(SCOPE, {
    shard_id(GROUP, 0): Point(LINEAGE, 3, 1234),
    shard_id(GROUP, 2): START,
    shard_id(GROUP, 9): Point(b"\xff" * 16, 1, (1 << 63) - 1),
})
GOLDEN = (
    "tmc1.AQAAAAcAAAABAgMEBQYHCAkKCwwNDg8AAwADAAAAAAAAAAAAAAAAAAAAAAECAwQFBgcICQoLDA0ODxD_____________________AAAAA"
    "AABAAAAAAAAAAMAAAAAAAAE0gAAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAJAAIAAAAAAAAAAX__________C9g7KQ"
)

POINTS = st.one_of(
    st.just(START),
    st.builds(
        Point, st.binary(min_size=16, max_size=16).filter(any), st.integers(1, (1 << 63) - 1),
        st.integers(0, (1 << 63) - 1),
    ),
)
TOKENS = st.builds(
    lambda group, digest, history, points: Token(
        Scope(group, digest, history), {shard_id(group, index): point for index, point in points.items()}
    ),
    st.integers(0, (1 << 32) - 1), st.binary(min_size=16, max_size=16), st.sampled_from(History),
    st.dictionaries(st.integers(0, SHARDS_MAX - 1), POINTS, max_size=8),
)


@given(TOKENS)
def test_u55_a_token_is_read_as_it_was_written(token: Token) -> None:
    assert decode(encode(token)) == token
    assert encode(token).isascii() and encode(token).isprintable() and " " not in encode(token)


def test_u55_a_token_of_the_first_format_is_read() -> None:
    """The text is stored by applications: it never changes its meaning."""
    assert encode(TOKEN) == GOLDEN
    assert decode(GOLDEN) == TOKEN


def test_u55_a_token_is_the_position_in_each_shard() -> None:
    assert TOKEN.position(shard_id(GROUP, 0)) == Position(SCOPE, shard_id(GROUP, 0), Point(LINEAGE, 3, 1234))
    assert TOKEN.position(shard_id(GROUP, 5)).point == START, "a shard that the token does not name begins"


def test_u55_the_largest_token_is_within_the_bound() -> None:
    points = {shard_id(1, index): Point(index.to_bytes(16, "big"), 1, 5) for index in range(1, SHARDS_MAX + 1)}
    text = encode(Token(Scope(1), points))

    assert len(text) <= TOKEN_CHARS_MAX
    assert decode(text) == Token(Scope(1), points)


@given(st.integers(0, len(GOLDEN) - 1), st.characters(codec="ascii"))
def test_u55_a_token_that_was_changed_is_refused(at: int, letter: str) -> None:
    changed = GOLDEN[:at] + letter + GOLDEN[at + 1:]

    assert changed == GOLDEN or isinstance(decode(changed), PositionRefused)


@given(st.text(max_size=300))
def test_u55_any_text_is_refused_and_not_an_error(text: str) -> None:
    assert isinstance(decode(text), PositionRefused)
    assert isinstance(decode(f"tmc1.{text}"), PositionRefused)


@given(st.binary(max_size=200))
def test_u55_bytes_with_a_right_checksum_are_a_token_or_refused(body: bytes) -> None:
    """A checksum is no seal: each field is judged for itself."""
    found = decode(sealed(body))

    assert isinstance(found, PositionRefused) or encode(found) == sealed(body)


def sealed(body: bytes) -> str:
    return "tmc1." + urlsafe_b64encode(body + struct.pack(">I", crc32c(body))).rstrip(b"=").decode()


def body_of(**changes: int | bytes) -> bytes:
    fields: dict[str, int | bytes] = {
        "format": 1, "group": GROUP, "history": 0, "filter": bytes(16), "lineages": 1, "shards": 1, "lineage": LINEAGE,
        "index": 0, "place": 0, "epoch": 3, "seqno": 9, "rest": b"", **changes,
    }
    head = struct.pack(">BIH16sHH", *(fields[name] for name in (
        "format", "group", "history", "filter", "lineages", "shards",
    )))
    shard = struct.pack(">IHQQ", *(fields[name] for name in ("index", "place", "epoch", "seqno")))
    return head + bytes(fields["lineage"]) + shard + bytes(fields["rest"])


HOSTILE = [
    ("token", ""), ("token", "tmc1"), ("token", "hello.world"), ("token", "tmc1."), ("token", "tmc1.####"),
    ("token", "tmc1." + "A" * TOKEN_CHARS_MAX), ("token", GOLDEN + "="), ("token", GOLDEN[:40]),
    ("format", GOLDEN.replace("tmc1", "tmc2")), ("format", sealed(body_of(format=2))),
    ("checksum", GOLDEN[:-6] + "AAAAAA"), ("checksum", GOLDEN[:60] + GOLDEN[64:]),
    ("history", sealed(body_of(history=2))),
    ("shards", sealed(body_of(shards=2))), ("shards", sealed(body_of(shards=0xFFFF))),
    ("shards", sealed(body_of(lineages=0xFFFF))), ("shards", sealed(body_of(rest=b"\0"))),
    ("shards", sealed(body_of(shards=2, rest=struct.pack(">IHQQ", 0, 0, 3, 9)))),
    ("lineage", sealed(body_of(place=1))), ("lineage", sealed(body_of(lineage=bytes(16)))),
    ("lineage", sealed(body_of(epoch=0))), ("lineage", sealed(body_of(epoch=0, seqno=0))),
    ("epoch", sealed(body_of(epoch=1 << 63))), ("seqno", sealed(body_of(seqno=1 << 63))),
]


@pytest.mark.parametrize(("field", "text"), HOSTILE, ids=range(len(HOSTILE)))
def test_u55_a_hostile_token_is_refused_by_the_name_of_its_field(field: str, text: str) -> None:
    found = decode(text)

    assert isinstance(found, PositionRefused)
    assert (found.field, bool(found.message)) == (field, True)


def test_u55_what_cannot_be_printed_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="of its group 7"):
        encode(Token(SCOPE, {shard_id(GROUP + 1, 0): START}))


@pytest.mark.parametrize(("field", "point"), [
    ("lineage", Point(b"short", 1, 1)), ("lineage", Point(bytes(16), 1, 1)), ("lineage", Point(LINEAGE, 0, 0)),
    ("seqno", Point(LINEAGE, 1, -1)), ("epoch", Point(LINEAGE, -1, 1)),
])
def test_u55_a_point_that_cannot_be_is_refused(field: str, point: Point) -> None:
    found = wrong_point(point)

    assert found is not None and found.field == field
    assert wrong_point(Point(LINEAGE, 1, 1)) is None is wrong_point(START)


END = Point(LINEAGE, 2, 9)


@pytest.mark.parametrize("partial", [
    Partial(4, 6, END), Partial(5, 4, END), Partial(5, 10, END), Partial(5, 6, END._replace(epoch=-1)),
    Partial(5, 6, END, purged=10), Partial(5, 6, END, purged=-1), Partial(5, 6, END, first_end=9),
])
def test_u62_a_partial_snapshot_that_cannot_be_is_refused(partial: Partial) -> None:
    point = Point(LINEAGE, 1, 5)

    assert wrong_partial(partial, point) is not None
    assert wrong_partial(Partial(5, 6, END, purged=7), point) is None
    assert wrong_partial(Partial(0, 6, END, purged=7, first_end=8), START) is None
    assert wrong_partial(Partial(0, 6, END, first_end=10), START) is not None
