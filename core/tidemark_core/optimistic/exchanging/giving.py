"""Giving: how a source answers a puller, from its tree and its rows (D74).

The shell reads what an answer needs: for a `Sketch` the rows of its part, for a `Want` the rows at its places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xxhash import xxh3_64_intdigest

from ..cells import Place, Row, encode_place, encode_row
from ..owner import Fate, closed
from ..standing import Standing
from .messages import Exchange, Given, Listed, Open, Opened, Sketch, Unanswered, Want
from .tree import Tree, Weighed

PARTS_MAX = 16
BUCKETS = 64
SHORT = (1 << 64) - 1
GIVEN_BYTES_MAX = 1 << 20
DIGEST_BYTES = 8


def unanswered(standing: Standing, exchange: Exchange, tree: Tree) -> Unanswered | None:
    """Say why a puller gets no answer, None where it does: both act under one record and one floor (D61, D74)."""
    record = standing.record
    why = closed(standing, exchange.version)
    if why is None and exchange.floor_ms != record.floor_ms:
        why = Fate.OLD_RING if exchange.floor_ms < record.floor_ms else Fate.NEEDS_RING
    if why is None and not tree.ready:
        why = Fate.NOT_READY
    return None if why is None else Unanswered(exchange, why, record if why is Fate.OLD_RING else None)


def on_open(m: Open, tree: Tree) -> Opened:
    """Answer what is in a part."""
    tally = tree.tally(m.first, m.behind)
    if tally is not None and (tally == m.tally or not tally.rows):
        return Opened(m.exchange, m.first, m.behind)
    parts = tree.parts(m.first, m.behind, PARTS_MAX)
    if parts is None:
        return Opened(m.exchange, m.first, m.behind, leaf=True)
    return Opened(m.exchange, m.first, m.behind, tuple(part for part in parts if part.tally.rows))


def on_sketch(m: Sketch, rows: Sequence[Weighed], rest: bytes | None = None) -> Listed:
    """Name the rows of a part in the buckets that differ; `rest`: the place where `rows` end early.

    Rows that end early sum up to those of the puller in no bucket, but where it holds just these.
    """
    named: Iterable[Weighed] = rows
    if m.buckets:
        differ = {number for number, digest in enumerate(buckets_of(rows)) if digest != m.buckets[number]}
        named = (row for row in rows if bucket_of(row.at) in differ)
    return Listed(m.exchange, m.first, tuple((row.at, row.digest & SHORT) for row in named), rest)


def on_want(m: Want, held: Mapping[Place, Row]) -> Given:
    """Give the rows that were wanted first, as many as fit."""
    rows: list[tuple[Place, Row]] = []
    size, upto = 0, m.places[0]
    for place in m.places:
        row = held.get(place)
        size += len(encode_row(row)) if row is not None else 0
        if rows and size > GIVEN_BYTES_MAX:
            break
        upto = place
        if row is not None:
            rows.append((place, row))
    return Given(m.exchange, upto, tuple(rows))


def weight_of(answer: Opened | Listed | Given) -> int:
    """Return about how many bytes an answer has."""
    match answer:
        case Opened():
            return sum(len(part.first) + len(part.behind) + DIGEST_BYTES for part in answer.parts)
        case Listed():
            return sum(len(at) + DIGEST_BYTES for at, _ in answer.rows)
        case Given():
            return sum(len(encode_place(place)) + len(encode_row(row)) for place, row in answer.rows)


def bucket_of(at: bytes) -> int:
    """Return the bucket of a row, the same at every member whatever the row holds."""
    return xxh3_64_intdigest(at) % BUCKETS


def buckets_of(rows: Iterable[Weighed]) -> tuple[int, ...]:
    """Return the sums of the digests of rows by bucket."""
    sums = [0] * BUCKETS
    for row in rows:
        number = bucket_of(row.at)
        sums[number] = (sums[number] + row.digest) & SHORT
    return tuple(sums)

