"""Holding: what a replica keeps of payloads: it sweeps what is surplus, and takes no header alone that it should keep.

Rules K7-K9.  Both roles sweep by the same facts, the leader's; nobody is listed ranges.
Stays out: when the facts are told, getting back what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..base.effects import DropPayloads, Write
from ..base.entry import Entry, Kind
from ..base.errors import RemoteViolation
from .copies import Seat, surplus_upto
from .messages import Drop
from .replica import Replica


def may_lack(replica: Replica, offset: int) -> bool:
    """Say whether the payload of a data entry at `offset` may rightly be missing here (K9)."""
    if offset > replica.state.dropped:
        return False
    seat = replica.seat
    return seat is None or not keeps_at(replica, seat, offset)


def keeps_at(replica: Replica, seat: Seat, offset: int) -> bool:
    """Say whether the seat is designated for the data entry at `offset`."""
    return all(seat.keeps(order) for _, _, order in replica.log.order_spans(offset, offset))


def lacks_rightly(replica: Replica, entry: Entry) -> bool:
    """Say whether it is in order that this entry was found without its payload; else the copy is damaged."""
    return entry.kind is Kind.DATA and may_lack(replica, entry.last)


def sweep(replica: Replica, m: Drop) -> list[Write]:
    """Return the writes that drop what is surplus here and was not swept yet, as a prefix of our committed log.

    The state that goes with them says that it is committed (K8); nothing above our own commit is touched.
    """
    if len(m.matches) != len(m.ensemble):
        raise RemoteViolation(f"K6: {len(m.matches)} matches for {len(m.ensemble)} slots")
    replica.adopt_facts(m.ensemble, m.copies, m.epoch)
    seat, log, state = replica.seat, replica.log, replica.state
    if seat is None or not seat.selective:
        return []
    commit = min(m.commit, replica.commit)
    swept, dropped = state.swept, state.dropped
    writes: list[Write] = []
    for first, last, order in log.order_spans(max(swept + 1, log.first), commit):
        surplus = last if seat.keeps(order) else min(last, surplus_upto(seat, order, m.matches, commit))
        if surplus >= first:
            swept = surplus
            if not seat.keeps(order):
                dropped = max(dropped, surplus)
                writes += (DropPayloads(*span) for span in log.around_solid(first, surplus))
        if surplus < last:
            break
    replica.update(swept=swept, dropped=dropped)
    return writes


def check_bare(entries: Iterable[Entry], seat: Seat | None, commit: int) -> None:
    """Raise RemoteViolation when one of these comes without a payload that `seat` has to keep (K8)."""
    for entry in entries:
        if entry.held:
            continue
        if entry.kind is not Kind.DATA:
            raise RemoteViolation(f"K8: control entry {entry.id} comes without its payload")
        if entry.last > commit:
            raise RemoteViolation(f"K8: entry {entry.id} comes without its payload, commit is {commit}")
        if seat is None or seat.keeps(entry.order):
            raise RemoteViolation(f"K8: entry {entry.id} comes without the payload that this member keeps")
