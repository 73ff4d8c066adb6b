"""Giving: how a source answers a puller, from its tree and its rows (D74).

The shell reads what an answer needs: for a `Sketch` the rows of its part, for a `Want` the rows at its places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xxhash import xxh3_64_intdigest

from ..cells import Place, Row, encode_place, encode_row
from ..owner import Fate, closed
from ..standing import Standing
from .messages import Bounds, Exchange, Given, Listed, Open, Opened, Sketch, Unanswered, Want
from .tree import Part, Tree, Weighed

PARTS_MAX = 16
"""So many parts one of the puller becomes, and so many parts or leaves are in one message of the puller."""
LISTED_ROWS_MAX = 16_000
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
    """Answer what is in parts."""
    smaller: list[Part] = []
    leaves: list[Bounds] = []
    for first, behind, told in m.parts:
        tally = tree.tally(first, behind)
        if tally is not None and (tally == told or not tally.rows):
            continue
        inside = tree.parts(first, behind, PARTS_MAX)
        if inside is None:
            leaves.append((first, behind))
        else:
            smaller += [part for part in inside if part.tally.rows]
    return Opened(m.exchange, m.parts[0].first, m.parts[-1].behind, tuple(smaller), tuple(leaves))


def on_sketch(m: Sketch, found: Sequence[Sequence[Weighed]], rest: bytes | None = None) -> Listed:
    """Name the rows of leaves in the buckets that differ; `rest`: the place where what was `found` ends early.

    Rows that end early sum up to those of the puller in no bucket, but where it holds just these.
    """
    named: list[Weighed] = []
    for leaf, rows in zip(m.leaves, found, strict=False):
        if leaf.buckets:
            differ = {number for number, digest in enumerate(buckets_of(rows)) if digest != leaf.buckets[number]}
            named += [row for row in rows if bucket_of(row.at) in differ]
        else:
            named += rows
    return Listed(m.exchange, m.leaves[0].first, tuple((row.at, row.digest & SHORT) for row in named), rest)


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

