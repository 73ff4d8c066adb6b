"""Documents minus one repair, each named by its rule: the fold, what it stores, what time removes, pins and reads.

Stays out: everything that holds without documents as well; see `mutants`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tidemark_core import document_refill, document_shard
from tidemark_core.base.effects import DeleteRange, Persist, Put
from tidemark_core.base.entry import Entry
from tidemark_core.base.ids import ShardKind
from tidemark_core.document_comparing import Comparing
from tidemark_core.document_shard import Documents
from tidemark_core.documents import fold as folding
from tidemark_core.documents.fold import Folded, _Folding
from tidemark_core.documents.payload import Expired, Outcome, Verdict, Writes, decode_outcomes
from tidemark_core.documents.pinning import decode_pin
from tidemark_core.documents.requests import Level, ReadDocuments
from tidemark_core.documents.rows import (
    DIGEST_MASK,
    EFFECTS,
    FAMILIES,
    LIVE_CLASS,
    PINNED,
    PINS,
    SUMMARY,
    Row,
    Summary,
    expiry_key,
    pin_key,
    prefix,
    seqno_key,
)
from tidemark_core.documents.sweeping import Found, collected, swept
from tidemark_core.replication import recovery
from tidemark_core.replication.replica import Replica

from . import pull
from .mutant import Mutant, substitute

PROFILE = "upr"
RECOVERY_PROFILE = "upr_recovery"


def _after(stack: ExitStack, target: Any, name: str, change: Any) -> None:
    """Run `change(self, ...)` behind the original method."""
    original = target.__dict__[name]

    def method(self: Any, *arguments: Any) -> Any:
        value = original(self, *arguments)
        change(self, *arguments)
        return value

    substitute(stack, target, name, method)


# --- the source and the write (U46-U48) -----------------------------------------------------------------------


def _no_look_ahead(stack: ExitStack) -> None:
    original = folding.decoded
    substitute(stack, document_shard, "decoded", lambda entries, hidden: original(entries, lambda base: False))


def _watermark_in_a_later_write(stack: ExitStack) -> None:
    def store(self: Documents, folded: Folded) -> list[Any]:
        persist: Any = original(self, folded)[0]
        rows = tuple(write for write in persist.writes if getattr(write, "family", "") != SUMMARY)
        rest = tuple(write for write in persist.writes if getattr(write, "family", "") == SUMMARY)
        return [Persist(persist.address, rows), Persist(persist.address, rest, persist.then)]

    original = Documents._store
    substitute(stack, Documents, "_store", store)


def _half_an_entry(stack: ExitStack) -> None:
    def apply(self: _Folding, entry: Entry, seqno: int, write: Any) -> None:
        if seqno == entry.base or seqno < entry.last:
            original(self, entry, seqno, write)

    original = _Folding._apply
    substitute(stack, _Folding, "_apply", apply)


def _log_removed_above_applied(stack: ExitStack) -> None:
    def trim_to(self: Replica, first: int) -> list[Any]:
        folded, self.folded = self.folded, 1 << 62
        try:
            return original(self, first)
        finally:
            self.folded = folded

    original = Replica.trim_to
    substitute(stack, Replica, "trim_to", trim_to)


def _old_row_by_seqno_kept(stack: ExitStack) -> None:
    def forget(self: _Folding, key: bytes, old: Row, replaced_by: int) -> None:
        self.byseq.pop(old.seqno, None)

    _after(stack, _Folding, "_forget", forget)


def _rows_wiped_apart(stack: ExitStack) -> None:
    substitute(stack, document_shard, "wipe", lambda shard: ())
    substitute(stack, document_refill, "wipe", lambda shard: ())


def _adopted_rows_count_at_once(stack: ExitStack) -> None:
    def adopt(self: Documents, summary: Summary, writes: Any = ()) -> None:
        self.durable = summary.applied

    _after(stack, Documents, "_adopt", adopt)


def _stands_still(stack: ExitStack) -> None:
    substitute(stack, Documents, "on_gone", lambda self, member, first: [])


# --- conditions and outcomes (U49, U50) -----------------------------------------------------------------------


def _atomic_ignored(stack: ExitStack) -> None:
    def judge(self: _Folding, entry: Entry, writes: Writes) -> tuple[Outcome, ...]:
        return original(self, entry, writes._replace(atomic=False))

    original = _Folding._judge
    substitute(stack, _Folding, "_judge", judge)


def _tombstone_matches(stack: ExitStack) -> None:
    def judge(self: _Folding, entry: Entry, writes: Writes) -> tuple[Outcome, ...]:
        outcomes = list(original(self, entry, writes))
        for number, (write, outcome) in enumerate(zip(writes.records, outcomes, strict=True)):
            row = self._row(write.key)
            dead = row is not None and not row.live and write.expected == 0
            if dead and outcome.verdict is Verdict.APPLIED:
                outcomes[number] = Outcome(Verdict.REFUSED, row.seqno if row is not None else 0)
        return tuple(outcomes)

    original = _Folding._judge
    substitute(stack, _Folding, "_judge", judge)


def _outcomes_in_memory(stack: ExitStack) -> None:
    def data(self: _Folding, entry: Entry, writes: Writes | None) -> None:
        self.ops.pop((EFFECTS, seqno_key(self.shard, entry.base)))

    _after(stack, _Folding, "_data", data)


def _outcomes_trimmed_with_the_log(stack: ExitStack) -> None:
    def forget_outcomes(self: Documents, first: int) -> DeleteRange:
        shard = self.replica.shard
        return DeleteRange(EFFECTS, prefix(shard), seqno_key(shard, first))

    substitute(stack, Documents, "_forget_outcomes", forget_outcomes)


def _without(stack: ExitStack, *families: str) -> None:
    substitute(stack, pull, "FAMILIES", tuple(family for family in FAMILIES if family not in families))


def _outcomes_not_in_snapshot(stack: ExitStack) -> None:
    _without(stack, EFFECTS)


def _answered_before_the_fold(stack: ExitStack) -> None:
    def on_appended(self: Documents, request: int, appended: Any) -> list[Any]:
        outcomes = (Outcome(Verdict.APPLIED),) * appended.count
        return [document_shard._written(request, appended, outcomes)]

    substitute(stack, Documents, "_on_appended", on_appended)


def _outcomes_judged_again(stack: ExitStack) -> None:
    """A retry finds its own write."""
    def on_outcome_read(self: Documents, m: Any) -> list[Any]:
        _, request, appended = m.tag
        if m.values[0] is None:
            return original(self, m)
        found = decode_outcomes(m.values[0])
        again = tuple(
            Outcome(each.verdict, appended.base + number) if each.verdict is Verdict.APPLIED else each
            for number, each in enumerate(found)
        )
        return [document_shard._written(request, appended, again)]

    original = Documents._on_outcome_read
    substitute(stack, Documents, "_on_outcome_read", on_outcome_read)


# --- time (U51, U52) ------------------------------------------------------------------------------------------


def _expire_without_version(stack: ExitStack) -> None:
    def expire(self: _Folding, entry: Entry, expired: tuple[Expired, ...] | None) -> None:
        for number, (key, _) in enumerate(expired or ()):
            row = self._row(key)
            if row is not None and row.live:
                self._delete(entry, entry.base + number, key)

    substitute(stack, _Folding, "_expire", expire)


def _expire_without_clock(stack: ExitStack) -> None:
    def look(self: Documents, now_ms: int, leader: Any) -> list[Any]:
        behind = expiry_key(self.replica.shard, LIVE_CLASS, leader.clocks.next_stamp(now_ms) + 100_000)
        looks: list[Any] = original(self, now_ms, leader)
        return [replace(look, behind=behind) if look.tag[2:] == (LIVE_CLASS,) else look for look in looks]

    def expire(self: _Folding, entry: Entry, expired: tuple[Expired, ...] | None) -> None:
        for number, (key, seqno) in enumerate(expired or ()):
            row = self._row(key)
            if row is not None and row.live and row.seqno == seqno:
                self._delete(entry, entry.base + number, key)

    original = Documents._look
    substitute(stack, Documents, "_look", look)
    substitute(stack, _Folding, "_expire", expire)


def _expire_by_the_clock_of_each_member(stack: ExitStack) -> None:
    clocks = [0]

    def fold_slice(self: Documents, rows: dict[bytes, Row | None]) -> list[Any]:
        clocks[0] = self.replica.wall_ms
        return original(self, rows)

    def expire(self: _Folding, entry: Entry, expired: tuple[Expired, ...] | None) -> None:
        for number, (key, seqno) in enumerate(expired or ()):
            row = self._row(key)
            if row is not None and row.live and row.seqno == seqno and 0 < row.ms <= clocks[0]:
                self._delete(entry, entry.base + number, key, expired=True)

    original = Documents._fold
    substitute(stack, Documents, "_fold", fold_slice)
    substitute(stack, _Folding, "_expire", expire)


def _never_expires(stack: ExitStack) -> None:
    substitute(stack, Documents, "_look_later", lambda self, now_ms, leader: [])


def _purge_above_a_pin(stack: ExitStack) -> None:
    def unprotected(self: Documents, agreed_ms: int) -> int:
        return self.summary.applied

    substitute(stack, Documents, "_unprotected", unprotected)


def _sweep_what_is_not_purged(stack: ExitStack) -> None:
    original = swept
    substitute(
        stack, document_shard, "swept",
        lambda shard, summary, found: original(shard, replace(summary, purged=summary.applied), found),
    )


def _swept_rows_are_met_again(stack: ExitStack) -> None:
    def store(self: Documents, folded: Folded) -> list[Any]:
        return original(self, folded._replace(rows={key: row for key, row in folded.rows.items() if row is not None}))

    original = Documents._store
    substitute(stack, Documents, "_store", store)


# --- pins (U70-U72) -------------------------------------------------------------------------------------------


def _since(stack: ExitStack, choose: Any) -> None:
    def init(self: _Folding, shard: Any, summary: Summary, read: Any) -> None:
        self.since = choose([pin.at for pin in self.pins.values()])

    def changed(self: _Folding, entry: Entry) -> None:
        self.since = choose([pin.at for pin in self.pins.values()])

    _after(stack, _Folding, "__init__", init)
    _after(stack, _Folding, "_pin", changed)
    _after(stack, _Folding, "_unpin", changed)


def _nothing_kept(stack: ExitStack) -> None:
    _since(stack, lambda cuts: -1)


def _kept_for_the_oldest(stack: ExitStack) -> None:
    _since(stack, lambda cuts: min(cuts, default=-1))


def _pins_in_memory(stack: ExitStack) -> None:
    def pin(self: _Folding, entry: Entry) -> None:
        for name in self.pins:
            self.ops.pop((PINS, pin_key(self.shard, name)), None)

    _after(stack, _Folding, "_pin", pin)


def _renewal_moves_the_cut(stack: ExitStack) -> None:
    def pin(self: _Folding, entry: Entry) -> None:
        self.pins.pop(decode_pin(entry.payload).name, None)
        original(self, entry)

    original = _Folding._pin
    substitute(stack, _Folding, "_pin", pin)


def _anybody_ends_a_pin(stack: ExitStack) -> None:
    substitute(stack, folding, "why_not_unpinned", lambda pins, name, owner: None)


def _anybody_renews_a_pin(stack: ExitStack) -> None:
    substitute(stack, folding, "why_not_pinned", lambda pins, name, owner: None)


def _collected_by_the_newest(stack: ExitStack) -> None:
    def by_newest(summary: Summary, found: Found) -> Any:
        newest = max(summary.pins.items(), key=lambda each: each[1].at, default=None)
        return collected(replace(summary, pins=dict([newest] if newest else [])), found)

    substitute(stack, document_shard, "collected", by_newest)


def _all_collected(stack: ExitStack) -> None:
    substitute(
        stack, document_shard, "collected", lambda summary, found: collected(replace(summary, pins={}), found))


def _pins_not_in_snapshot(stack: ExitStack) -> None:
    _without(stack, PINS)


def _versions_not_in_snapshot(stack: ExitStack) -> None:
    _without(stack, PINNED)


# --- recovery (N13) -------------------------------------------------------------------------------------------


def _another_lineage(stack: ExitStack) -> None:
    original = recovery._identity
    substitute(
        stack, recovery, "_identity",
        lambda reports, stored, lineage: (original(reports, stored, lineage)[0], lineage),
    )


def _recovered_as_a_log(stack: ExitStack) -> None:
    substitute(stack, recovery, "_identity", lambda reports, stored, lineage: (ShardKind.LOG, b""))


# --- reads and digest (U53, U73) ------------------------------------------------------------------------------


def _no_round(stack: ExitStack) -> None:
    def on_read(self: Documents, now_ms: int, leader: Any, m: ReadDocuments) -> list[Any]:
        return original(self, now_ms, leader, replace(m, level=Level.LEADER) if m.level is Level.LINEARIZABLE else m)

    original = Documents._on_read
    substitute(stack, Documents, "_on_read", on_read)


def _read_before_the_rows(stack: ExitStack) -> None:
    def on_reader(self: Documents, now_ms: int, request: int, cut: int) -> list[Any]:
        return [self._granted(request)]

    substitute(stack, Documents, "_on_reader", on_reader)


def _digest_never_falls(stack: ExitStack) -> None:
    def forget(self: _Folding, key: bytes, old: Row, replaced_by: int) -> None:
        if old.live:
            self.digest = self.digest + old.number & DIGEST_MASK

    _after(stack, _Folding, "_forget", forget)


def _digest_in_another_write(stack: ExitStack) -> None:
    def store(self: Documents, folded: Folded) -> list[Any]:
        stale = replace(folded.summary, digest=self.summary.digest, count=self.summary.count).encode()
        key = prefix(self.replica.shard)
        writes = tuple(
            replace(write, value=stale) if isinstance(write, Put) and (write.family, write.key) == (SUMMARY, key)
            else write for write in folded.writes
        )
        return original(self, folded._replace(writes=writes))

    original = Documents._store
    substitute(stack, Documents, "_store", store)


def _one_member_folds_otherwise(stack: ExitStack) -> None:
    """The comparison of the product has to find it: its story looks at no rows."""
    def fold_slice(self: Documents, rows: dict[bytes, Row | None]) -> list[Any]:
        effects: list[Any] = original(self, rows)
        if self.replica.me.node == "n2" and self.summary.count:
            self.summary = replace(self.summary, digest=self.summary.digest ^ 1)
        return effects

    original = Documents._fold
    substitute(stack, Documents, "_fold", fold_slice)


def _nothing_compared(stack: ExitStack) -> None:
    substitute(stack, Comparing, "on_digests", lambda self, leader, sender, m, summary: [])


DOCUMENTS_MUTANTS: tuple[Mutant, ...] = (
    Mutant("U46", "the rollback is known before what it hides is folded", _no_look_ahead, PROFILE),
    Mutant("U47", "the cut is stored with the rows", _watermark_in_a_later_write, PROFILE),
    Mutant("U47 whole", "an entry is folded whole", _half_an_entry, PROFILE),
    Mutant("U47 trim", "the log is kept above the durable rows", _log_removed_above_applied, PROFILE),
    Mutant("U47 wipe", "rows go with the log", _rows_wiped_apart, PROFILE),
    Mutant("U47 adopted", "rows of a snapshot are shown once they are durable", _adopted_rows_count_at_once, PROFILE),
    Mutant("U47b", "a member that cannot fold on takes the rows of another one", _stands_still, PROFILE),
    Mutant("U48", "the old row by seqno goes with the new one", _old_row_by_seqno_kept, PROFILE),
    Mutant("U49", "one refusal refuses all of an atomic entry", _atomic_ignored, PROFILE),
    Mutant("U49 tombstone", "a tombstone is no document", _tombstone_matches, PROFILE),
    Mutant("U50", "outcomes are stored", _outcomes_in_memory, PROFILE),
    Mutant("U50 again", "the fold alone judges, once", _outcomes_judged_again, PROFILE),
    Mutant("U50 window", "outcomes last as long as a retry is known", _outcomes_trimmed_with_the_log, PROFILE),
    Mutant("U50 snapshot", "a new member has the outcomes", _outcomes_not_in_snapshot, PROFILE),
    Mutant("U50 answer", "a write is answered once it is folded", _answered_before_the_fold, PROFILE),
    Mutant("U51", "EXPIRE names versions", _expire_without_version, PROFILE),
    Mutant("U51 clock", "EXPIRE deletes by its own clock", _expire_without_clock, PROFILE),
    Mutant("U51 own clock", "EXPIRE deletes by the clock of the log", _expire_by_the_clock_of_each_member, PROFILE),
    Mutant("U51 never", "a leader looks for what expired", _never_expires, PROFILE),
    Mutant("U52", "no purge above a pin", _purge_above_a_pin, PROFILE),
    Mutant("U52 sweep", "only purged tombstones are removed", _sweep_what_is_not_purged, PROFILE),
    Mutant("U52 again", "the fold does not meet a tombstone that is being removed", _swept_rows_are_met_again, PROFILE),
    Mutant("U53", "a linearizable read needs a round", _no_round, PROFILE),
    Mutant("U53 rows", "a read waits for the rows", _read_before_the_rows, PROFILE),
    Mutant("U70", "renewing a pin never moves it", _renewal_moves_the_cut, PROFILE),
    Mutant("U70 stored", "pins are stored", _pins_in_memory, PROFILE),
    Mutant("U70 snapshot", "a new member has the pins", _pins_not_in_snapshot, PROFILE),
    Mutant("U70b", "the fold ends no pin of another owner", _anybody_ends_a_pin, PROFILE),
    Mutant("U70b renewed", "the fold renews no pin of another owner", _anybody_renews_a_pin, PROFILE),
    Mutant("U71", "superseded versions are kept", _nothing_kept, PROFILE),
    Mutant("U71 newest", "versions are kept for every pin", _kept_for_the_oldest, PROFILE),
    Mutant("U71 collect", "versions of older pins are kept", _collected_by_the_newest, PROFILE),
    Mutant("U71 collect all", "an unpin frees its own versions alone", _all_collected, PROFILE),
    Mutant("U71 snapshot", "a new member has the versions", _versions_not_in_snapshot, PROFILE),
    Mutant("N13", "a recovery that loses nothing keeps the lineage", _another_lineage, RECOVERY_PROFILE),
    Mutant("N13 kind", "a rebuilt record names its kind", _recovered_as_a_log, RECOVERY_PROFILE),
    Mutant("U73 write", "count and digest are stored with the cut", _digest_in_another_write, PROFILE),
    Mutant("U73b fold", "members fold alike", _one_member_folds_otherwise, PROFILE),
    Mutant("U73b", "a leader compares the digests of its followers", _nothing_compared, PROFILE),
    Mutant("U73", "the digest loses what is replaced", _digest_never_falls, PROFILE),
)
