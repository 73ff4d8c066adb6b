"""The documents of one shard on one node: they follow the confirmed log, and answer who waits for them.

The fold works in slices: entries from memory or a read of the log, then the rows that they touch, then one write of
everything they did.  The next slice begins while that write is under way; rows that are not durable yet are in memory.
Between slices purged tombstones and versions that no pin needs are removed.  A leader also appends what time asks for.
Where no member has the next entry any more, the rows of another member take the place of these (U47b).
Stays out: what entries do to rows (`documents.fold`); replication, which knows nothing of documents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

from .base.effects import (
    Changed,
    DeleteRange,
    DropBefore,
    Effect,
    Feed,
    Put,
    ReadLog,
    ReadRows,
    Reply,
    RowsDurable,
    RowsRead,
    RowsScanned,
    ScanRows,
    SetTimer,
    SnapshotFailed,
    SnapshotRows,
    Space,
    Wipe,
    Write,
)
from .base.entry import Durability, Entry, Kind
from .base.errors import RemoteViolation
from .base.ids import EntryId, Member
from .base.plane import Stored
from .base.refusals import Reason, Refused
from .document_changes import Changes, failover_key, opened
from .document_comparing import COMPARE_TIMER, Comparing
from .document_refill import Refill
from .documents.fold import Folded, Step, decoded, fold, keys_of
from .documents.payload import (
    EXPIRE_KEYS_MAX,
    MAGIC,
    Expired,
    MalformedWrites,
    Outcome,
    check,
    decode_outcomes,
    encode_expired,
)
from .documents.pinning import Ended, encode_pin, encode_unpin, why_not_pinned, why_not_unpinned, wrong_pin
from .documents.requests import (
    DocumentRequest,
    Level,
    PinDocuments,
    Pinned,
    ReadDocuments,
    ReadGranted,
    UnpinDocuments,
    Unpinned,
    Written,
)
from .documents.rows import (
    DOCS,
    EFFECTS,
    EXPIRY,
    LIVE_CLASS,
    PINNED,
    SUMMARY,
    TOMBSTONE_CLASS,
    Row,
    Summary,
    behind,
    decode_row,
    doc_key,
    due_of,
    expiry_key,
    prefix,
    seqno_key,
    wipe,
)
from .documents.sweeping import collected, purgeable, swept
from .replication.clients import AppendRequest, LatestRequest
from .replication.leader import Leader
from .replication.messages import Appended, Latest
from .replication.replica import Replica, Role
from .upr.history import FailoverLog

LOOK_TIMER = "documents_look"
RETRY_TIMER = "documents_retry"
WAIT_TIMER = "documents_wait"
WHOLE_TIMER = "documents_whole"
TIMERS = frozenset((LOOK_TIMER, RETRY_TIMER, WAIT_TIMER, WHOLE_TIMER, COMPARE_TIMER))

TAG = "documents"
"""Reads with this tag are the fold's."""

BATCHES_MAX = 4
"""Batches that are not durable yet; then the fold waits, and so do tombstones that could be removed."""
SLICES_MAX = 16
"""Slices that may go before background work that waits."""
SWEEP_ROWS = 256
LOOK_ROWS = EXPIRE_KEYS_MAX
WAITERS_MAX = 4096
WHOLE_MS = 10_000
"""Between looks at whether our log comes nearer to the end of whole rows that wait for it."""


class _Batch(NamedTuple):
    """A write of the fold that is not durable yet."""

    number: int
    applied: int
    rows: Mapping[bytes, Row | None]
    outcomes: dict[int, tuple[Outcome, ...]]


@dataclass(frozen=True, slots=True)
class _Slice:
    """Entries that wait for their rows."""

    steps: tuple[Step, ...]
    cut: int
    known: dict[bytes, Row | None]   # rows of batches that were not durable when the others were asked for


class _Reader(NamedTuple):
    """A read that waits for the store to show `cut`."""

    request: int
    cut: int
    until_ms: int


class _Asker(NamedTuple):
    """A caller who waits for the control entry at `at` to be folded."""

    asked: PinDocuments | UnpinDocuments
    at: int
    until_ms: int

    @property
    def request(self) -> int:
        return self.asked.request


class Documents:
    """The documents of one replica."""

    __slots__ = (
        "_askers", "_batches", "_collect", "_control", "_job", "_looking", "_lost", "_number", "_oldest", "_oldest_at",
        "_read_until", "_readers", "_refill", "_retrying", "_rounds", "_since_sweep", "_slice", "_sweep", "_token",
        "_waiting", "comparing", "durable", "failover", "replica", "summary",
    )

    def __init__(
        self, replica: Replica, summary: Summary | None = None, failover: FailoverLog | None = None,
        restored: bool = False,
    ) -> None:
        """Begin at the rows of `summary`; where a restart finds none, what is left of rows that were not whole goes."""
        self.replica = replica
        self.failover = failover or FailoverLog()   # of the entries up to `summary.applied` (U54)
        self.summary = summary or Summary()       # as folded in memory
        self.durable = self.summary.applied       # as the store shows it
        replica.folded, replica.beside = self.durable, self._beside
        self._lost: list[Effect] = []             # refusals to those who waited for rows that were wiped
        self._batches: deque[_Batch] = deque()
        self._number = 0                          # of the newest batch
        self._token = 0                           # of the newest read: answers of older ones are ignored
        # Under way: one slice, one piece of background work, or the rows of another member.
        self._job = "stale" if restored and summary is None else ""
        self._slice: _Slice | None = None
        self._since_sweep = 0
        self._sweep = self.summary.tombstones > 0 and self.summary.purged >= 0
        self._collect: bytes | None = prefix(replica.shard)   # where collection goes on; None: nothing to do
        self._waiting: dict[int, list[tuple[int, Appended]]] = {}   # writers, by the base of their entry
        self._rounds: dict[int, ReadDocuments] = {}   # linearizable reads that wait for a round, by request
        self._readers: list[_Reader] = []
        self._askers: list[_Asker] = []
        self._control = -1                        # newest entry that this leader appended for documents
        self._looking = self._retrying = False
        self._read_until: int | None = None
        self._refill = Refill(replica)
        self.comparing = Comparing(replica)
        self._oldest = self._oldest_at = -1       # offset that producers remember at least, and the trim that found it

    def status(self) -> dict[str, Any]:
        """Return what a person wants to know of the documents, ready for JSON."""
        summary, lag = self.summary, self.replica.confirmed - self.summary.applied
        return {
            "applied": summary.applied, "durable": self.durable, "lag": max(lag, 0),
            "count": summary.count, "digest": f"{summary.digest:032x}", "expiring": summary.expiring,
            "tombstones": summary.tombstones, "purged": summary.purged,
            "pins": {name: pin.at for name, pin in sorted(summary.pins.items())},
        }

    # --- what the shard calls -----------------------------------------------------------------------------

    def refuse(self, request: AppendRequest) -> Refused | None:
        """Say what is wrong with a write before it is appended (U49); a LOCAL one could be lost after its answer."""
        batch = request.batch
        if not batch.payload.startswith(MAGIC):
            return Refused(Reason.WRONG_KIND, "the shard keeps documents, and the batch is none of document writes")
        if batch.durability is Durability.LOCAL:
            return Refused(Reason.INVALID_BATCH, "durability is LOCAL; documents take QUORUM or COMMIT")
        try:
            check(batch.payload, batch.count)
        except MalformedWrites as error:
            return Refused(Reason.INVALID_BATCH, str(error))
        return None

    def after(self, now_ms: int, leader: Leader | None, effects: list[Effect]) -> list[Effect]:
        """Return the effects of a step with the documents' part in them: answers, removals, and the next slice."""
        changed: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Reply):
                changed += self._answer(now_ms, effect)
            else:
                changed.append(effect)
        changed += self._lost
        self._lost = []
        if self._job == "rows whole" and self._refill.misses():
            changed += self._retry_later(now_ms)   # rows of a history that was lost, say
        changed += self._next()
        return [*changed, *self._look_later(now_ms, leader), *self.comparing.later(now_ms, leader, self.summary)]

    def on_request(self, now_ms: int, leader: Leader | None, m: DocumentRequest) -> list[Effect]:
        if self.replica.state.role in (Role.SEEDING, Role.DELETED):
            return [self._refused(m.request, Reason.NO_REPLICA, f"replica is {self.replica.state.role}")]
        if isinstance(m, ReadDocuments):
            return self._on_read(now_ms, leader, m)
        if leader is None:
            return [self._refused(m.request, Reason.NOT_LEADER, "")]
        return self._on_pin(now_ms, leader, m)

    def on_timer(self, now_ms: int, leader: Leader | None, name: str) -> list[Effect]:
        if name == LOOK_TIMER:
            self._looking = False
            return self._look(now_ms, leader) if leader is not None else []
        if name == COMPARE_TIMER:
            return self.comparing.on_timer(leader)
        if name == RETRY_TIMER:
            self._retrying = False
            if self._job == "retry":
                self._job = "stale" if self._refill.partial else ""
            return []   # `after` begins again
        if name == WHOLE_TIMER:
            if self._job != "rows whole":
                return []
            if self._refill.waits():
                return [self._whole_later(now_ms)]
            self._job = "stale"   # its end is too far, or is none: another member is asked
            return []
        self._read_until = None
        late = [each for each in self._readers if each.until_ms <= now_ms]
        self._readers = [each for each in self._readers if each.until_ms > now_ms]
        effects: list[Effect] = [self._behind(each.request) for each in late]
        given_up = [each for each in self._askers if each.until_ms <= now_ms]
        self._askers = [each for each in self._askers if each.until_ms > now_ms]
        effects += [
            self._refused(each.request, Reason.QUORUM_TIMEOUT, "the outcome is unknown; repeat the request")
            for each in given_up
        ]
        return effects + self._wait_later()

    def resigned(self) -> list[Effect]:
        """The leadership ended: reads that wait for its round were refused with it, and so are callers of pins."""
        askers, self._askers, self._control, self._looking = self._askers, [], -1, False
        return [
            SetTimer(self.replica.address, LOOK_TIMER, None),
            *self.comparing.resigned(),
            *(self._refused(each.request, Reason.NOT_LEADER, "leadership ended; repeat the request") for each in askers)
        ]

    # --- following the log --------------------------------------------------------------------------------

    def _next(self) -> list[Effect]:
        """Begin the next slice or piece of background work, when nothing is under way."""
        replica, summary = self.replica, self.summary
        if replica.state.role in (Role.SEEDING, Role.DELETED):
            return []
        if self._job == "stale":
            return self._clean()
        if self._job == "rows whole" and self._refill.fits():
            return self._replaced()
        if self._job:
            return []
        if replica.log.first > summary.applied + 1:
            return self._pull_rows()
        waiting = replica.confirmed > summary.applied
        if (self._sweep or self._collect is not None) and (not waiting or self._since_sweep >= SLICES_MAX):
            # It removes rows by what the store shows, so it waits until the store shows all that was folded.
            return [] if self._batches else self._background()
        if not waiting or len(self._batches) >= BATCHES_MAX:
            return []
        first = summary.applied + 1
        if (found := replica.log.decisions.covering(first)) is not None:
            first = found.at   # what it hides was never there: go on with the record that says so (U46)
        if first > replica.confirmed:
            return []
        self._since_sweep += 1
        bytes_max = replica.limits.fold_bytes_max
        if replica.log.in_tail(first):
            entries = takewhile(lambda each: each.last <= replica.confirmed, replica.log.take(first, bytes_max))
            return self._on_entries(tuple(entries))
        self._job = "entries"
        # Behind all earlier writes: what is confirmed may not be on our own disk yet.
        read = ReadLog(replica.shard, (TAG, self._fresh_token(), first), first, replica.confirmed, bytes_max)
        return [replica.persist((), (read,))]

    def on_log_read(self, now_ms: int, tag: tuple[Any, ...], entries: Sequence[Entry]) -> list[Effect]:
        """Entries were read for the fold; none of them when the first one is damaged."""
        _, token, first = tag
        if token != self._token or self._job != "entries":
            return []
        self._job = ""
        if not entries or entries[0].base != first:
            return self._retry_later(now_ms)
        return self._on_entries(entries)

    def _fresh_token(self) -> int:
        self._token += 1
        return self._token

    def _retry_later(self, now_ms: int) -> list[Effect]:
        self._job = "retry"
        if self._retrying:
            return []
        self._retrying = True
        return [SetTimer(self.replica.address, RETRY_TIMER, now_ms + self.replica.limits.resend_ms)]

    def _on_entries(self, entries: Sequence[Entry]) -> list[Effect]:
        covering = self.replica.log.decisions.covering
        steps = decoded(entries, lambda base: covering(base) is not None)
        # Never inside a hole: at its record once that is folded, in front of it till then.
        found = covering(entries[-1].base)
        cut = found.first - 1 if found is not None else entries[-1].last
        keys = keys_of(steps)
        known: dict[bytes, Row | None] = {}
        for batch in self._batches:
            known.update((key, batch.rows[key]) for key in batch.rows.keys() & keys)
        self._slice = _Slice(steps, max(cut, self.summary.applied), known)
        missing = tuple((DOCS, doc_key(self.replica.shard, key)) for key in sorted(keys - known.keys()))
        if not missing:
            return self._fold({})
        self._job = "rows"
        return [ReadRows(self.replica.address, (TAG, self._fresh_token(), missing), missing)]

    def on_rows_read(self, m: RowsRead) -> list[Effect]:
        if m.tag[0] == EFFECTS:
            return self._on_outcome_read(m)
        _, token, keys = m.tag
        if token != self._token or self._job != "rows":
            return []
        at = len(prefix(self.replica.shard))
        return self._fold({
            key[at:]: decode_row(value) if value is not None else None
            for (_, key), value in zip(keys, m.values, strict=True)
        })

    def _fold(self, rows: dict[bytes, Row | None]) -> list[Effect]:
        replica, taken = self.replica, self._slice
        assert taken is not None, "U46: rows without a slice"
        rows |= taken.known
        self._job, self._slice = "", None
        epoch = replica.log.epoch_at(taken.cut)
        folded = fold(replica.shard, self.summary, taken.steps, taken.cut, epoch, rows.__getitem__)
        failover = opened(self.failover, taken.steps)
        if failover != self.failover:
            log = Put(SUMMARY, failover_key(replica.shard), failover.encode())
            folded = folded._replace(writes=(*folded.writes, log))
        changed: list[Effect] = []
        if failover.openings:   # else no place has a history, and streams are refused (U54)
            changed.append(Changed(replica.shard, Changes(self.summary.applied, taken.steps, folded, failover)))
        self.failover = failover
        if folded.unpinned:
            self._collect = prefix(replica.shard)
        if folded.summary.purged > self.summary.purged and folded.summary.tombstones:
            self._sweep = True
        return [*changed, *self._store(folded), *self._folded_to(folded), *self._next()]

    def _store(self, folded: Folded) -> list[Effect]:
        self.summary = folded.summary
        self.comparing.folded(folded.digests)
        self._number += 1
        self._batches.append(_Batch(self._number, folded.summary.applied, folded.rows, folded.outcomes))
        return [self.replica.persist(folded.writes, [Feed(RowsDurable(self.replica.address, self._number))])]

    def on_durable(self, m: RowsDurable) -> list[Effect]:
        """The store shows a batch: the log below is not needed any more, and readers may be served (U47)."""
        while self._batches and self._batches[0].number <= m.number:
            self.durable = self._batches.popleft().applied
        self.replica.folded = self.durable
        self._keep_tail()
        effects: list[Effect] = []
        if self._job in ("cleaning", "replaced") and m.number == self._number:
            self._job = ""
            effects += self._answer_replaced()
        ready = [each for each in self._readers if each.cut <= self.durable]
        if ready:
            self._readers = [each for each in self._readers if each.cut > self.durable]
        return [*effects, *(self._granted(each.request) for each in ready)]

    def _keep_tail(self) -> None:
        """A follower, too, keeps new entries in memory until rows stand for them: the fold need not read them back."""
        log = self.replica.log
        if self.replica.state.role is not Role.LEADER:   # whose tail is also what its followers lack
            log.tail_bytes_max = self.replica.limits.tail_bytes_max
            log.shrink_tail(self.durable + 1)

    # --- background work ----------------------------------------------------------------------------------

    def _background(self) -> list[Effect]:
        replica, shard = self.replica, self.replica.shard
        self._since_sweep = 0
        if self._sweep:
            self._job = "sweep"
            first, last = expiry_key(shard, TOMBSTONE_CLASS), behind(shard)
            return [ScanRows(replica.address, (TAG, self._fresh_token()), EXPIRY, first, last, SWEEP_ROWS)]
        self._job = "collect"
        assert self._collect is not None
        return [ScanRows(replica.address, (TAG, self._fresh_token()), PINNED, self._collect, behind(shard), SWEEP_ROWS)]

    def on_scanned(self, now_ms: int, leader: Leader | None, m: RowsScanned) -> list[Effect]:
        if m.tag[0] == LOOK_TIMER:
            return self._on_looked(now_ms, leader, m)
        _, token = m.tag
        if token != self._token or self._job not in ("sweep", "collect"):
            return []
        job, self._job = self._job, ""
        if job == "collect":
            self._collect = m.rows[-1][0] + b"\0" if m.more and m.rows else None
            writes = collected(self.summary, m.rows)
            return self._store(Folded(self.summary, writes, {}, {})) if writes else []
        writes, removed = swept(self.replica.shard, self.summary, m.rows)
        self._sweep = m.more and len(removed) == len(m.rows)
        if not removed:
            return []
        summary = replace(self.summary, tombstones=self.summary.tombstones - len(removed))
        last = Put(SUMMARY, prefix(self.replica.shard), summary.encode())
        # A fold that reads before this write is durable must not meet the tombstones again.
        return self._store(Folded(summary, (*writes, last), dict.fromkeys(removed), {}))

    # --- writers ------------------------------------------------------------------------------------------

    def _answer(self, now_ms: int, reply: Reply) -> list[Effect]:
        """Turn what replication answers into what documents answer: later, and with what the fold found."""
        value = reply.value
        if isinstance(value, Appended):
            return self._on_appended(reply.request, value)
        asked = self._rounds.pop(reply.request, None)
        if asked is not None and isinstance(value, Latest):
            return self._on_reader(now_ms, asked.request, max(value.offset, asked.min_seqno))
        return [reply]

    def _on_appended(self, request: int, appended: Appended) -> list[Effect]:
        """A write is confirmed: it is answered once it is folded, with its first outcome (U50)."""
        if self.summary.applied < appended.base + appended.count - 1:
            self._waiting.setdefault(appended.base, []).append((request, appended))
            return []
        for batch in self._batches:
            if appended.base in batch.outcomes:
                return [_written(request, appended, batch.outcomes[appended.base])]
        key = (EFFECTS, seqno_key(self.replica.shard, appended.base))
        return [ReadRows(self.replica.address, (EFFECTS, request, appended), (key,))]

    def _on_outcome_read(self, m: RowsRead) -> list[Effect]:
        _, request, appended = m.tag
        row = m.values[0]
        if row is None:
            forgotten = f"the outcome of the batch at {appended.base} is no longer remembered"
            return [self._refused(request, Reason.SEQUENCE_TOO_OLD, forgotten)]
        return [_written(request, appended, decode_outcomes(row))]

    def _folded_to(self, folded: Folded) -> list[Effect]:
        """Answer the callers whose entries are folded now."""
        effects: list[Effect] = []
        for base, outcomes in folded.outcomes.items():
            for request, appended in self._waiting.pop(base, ()):
                effects.append(_written(request, appended, outcomes))
        return effects + self._answer_askers()

    def _answer_askers(self) -> list[Effect]:
        applied = self.summary.applied
        done = [each for each in self._askers if each.at <= applied]
        if done:
            self._askers = [each for each in self._askers if each.at > applied]
        return [self._asked(each) for each in done]

    def _asked(self, asker: _Asker) -> Effect:
        if self.replica.log.decisions.covering(asker.at) is not None:
            return self._refused(asker.request, Reason.ROLLED_BACK, f"the entry at {asker.at} was rolled back")
        asked = asker.asked
        if (refused := self._why_not(asked)) is not None:
            return refused
        if isinstance(asked, UnpinDocuments):
            return Reply(asked.request, Unpinned(asked.name))
        pin = self.summary.pins.get(asked.name)
        if pin is None:
            return self._refused(asked.request, Reason.ABORTED, f"pin {asked.name!r} is over already")
        return Reply(asked.request, Pinned(asked.name, pin.at, pin.epoch, pin.count, pin.digest))

    def _why_not(self, m: PinDocuments | UnpinDocuments) -> Effect | None:
        """Return the refusal of what the fold gives no effect beside the pins of now, None where it has one (U70b)."""
        judge = why_not_pinned if isinstance(m, PinDocuments) else why_not_unpinned
        refused = judge(self.summary.pins, m.name, m.owner)
        return None if refused is None else self._refused(m.request, refused.reason, refused.message)

    # --- readers ------------------------------------------------------------------------------------------

    def _on_read(self, now_ms: int, leader: Leader | None, m: ReadDocuments) -> list[Effect]:
        """Rule U53."""
        if m.level is Level.FOLLOWER:
            return self._on_reader(now_ms, m.request, m.min_seqno)
        if leader is None:
            return [self._refused(m.request, Reason.NOT_LEADER, "")]
        if m.level is Level.LEADER:
            return self._on_reader(now_ms, m.request, m.min_seqno)
        self._rounds[m.request] = m
        return leader.read_index.on_request(now_ms, LatestRequest(m.shard, m.request))

    def _on_reader(self, now_ms: int, request: int, cut: int) -> list[Effect]:
        if cut <= self.durable:
            return [self._granted(request)]
        if len(self._readers) >= WAITERS_MAX:
            return [self._refused(request, Reason.OVERLOADED, f"{WAITERS_MAX} reads wait for the documents already")]
        self._readers.append(_Reader(request, cut, now_ms + self.replica.limits.read_index_ms))
        return self._wait_later()

    def _wait_later(self) -> list[Effect]:
        deadlines = (*(each.until_ms for each in self._readers), *(each.until_ms for each in self._askers))
        until_ms = min(deadlines, default=None)
        if until_ms is None or (self._read_until is not None and self._read_until <= until_ms):
            return []
        self._read_until = until_ms
        return [SetTimer(self.replica.address, WAIT_TIMER, until_ms)]

    def _granted(self, request: int) -> Effect:
        return Reply(request, ReadGranted(self.replica.state.epoch, self.durable))

    def _behind(self, request: int) -> Effect:
        text = f"documents are folded up to {self.durable}"
        return Reply(request, Refused(Reason.BEHIND, text, self.replica.state.epoch, self.durable))

    def _refused(self, request: int, reason: Reason, message: str) -> Effect:
        return Reply(request, Refused(reason, message, self.replica.state.epoch))

    # --- the leader's part --------------------------------------------------------------------------------

    def _on_pin(self, now_ms: int, leader: Leader, m: PinDocuments | UnpinDocuments) -> list[Effect]:
        if (wrong := wrong_pin(m.name, m.ttl_ms if isinstance(m, PinDocuments) else 1)) is not None:
            return [self._refused(m.request, Reason.INVALID_SPEC, wrong)]
        if not self._may_append(leader):
            return [self._refused(m.request, Reason.OVERLOADED, "the leader takes no control entry now")]
        if len(self._askers) >= WAITERS_MAX:
            return [self._refused(m.request, Reason.OVERLOADED, f"{WAITERS_MAX} callers of pins wait already")]
        if (refused := self._why_not(m)) is not None:
            return [refused]
        if isinstance(m, PinDocuments):
            leader.append_control(now_ms, Kind.PIN, encode_pin(m.name, m.ttl_ms, m.owner))
        else:
            leader.append_control(now_ms, Kind.UNPIN, encode_unpin(m.name, Ended.ASKED, m.owner))
        self._control = leader.head
        until_ms = now_ms + leader.outcomes.timeout_ms
        self._askers.append(_Asker(m, leader.head, until_ms))
        return self._wait_later()

    def _may_append(self, leader: Leader) -> bool:
        """Say whether this leader knows all that was confirmed before it, and has space."""
        replica = self.replica
        return (
            leader.active and replica.confirmed >= leader.outcomes.limbo.opening
            and replica.space is not Space.EXHAUSTED and leader.transfer is None
        )

    def _look_later(self, now_ms: int, leader: Leader | None) -> list[Effect]:
        """Look every second while time can ask for something; a shard without ttl, tombstone and pin costs nothing."""
        summary = self.summary
        if leader is None or self._looking or not (summary.expiring or summary.tombstones or summary.pins):
            return []
        self._looking = True
        return [SetTimer(self.replica.address, LOOK_TIMER, now_ms + self.replica.limits.expire_look_ms)]

    def _look(self, now_ms: int, leader: Leader) -> list[Effect]:
        """Append UNPIN where a lease is over or a pin keeps too much; look for what may expire or be purged (U51, U52).
        """
        replica, summary = self.replica, self.summary
        # Entries of earlier leaders end at the opening: a lease that one of them renewed is judged once it is folded.
        if not self._may_append(leader) or max(self._control, leader.outcomes.limbo.opening) > summary.applied:
            return []
        agreed_ms = leader.clocks.agreed_ms(now_ms)
        bytes_max = replica.document_settings.pinned_bytes_max or replica.limits.pinned_bytes_max
        effects: list[Effect] = []
        for name, pin in summary.pins.items():
            reason = (
                Ended.BYTES if pin.kept_bytes > bytes_max
                else Ended.LEASE if agreed_ms is not None and pin.until_ms <= agreed_ms else None
            )
            if reason is not None:
                leader.append_control(now_ms, Kind.UNPIN, encode_unpin(name, reason))
                self._control = leader.head
            if reason is Ended.BYTES:
                what = f"pin {name!r} keeps {pin.kept_bytes} bytes, the limit is {bytes_max}"
                effects.append(replica.trace("pin_over_bytes", what))
        shard, tag = replica.shard, (LOOK_TIMER, leader.epoch)
        if summary.expiring:
            behind_ms = leader.clocks.next_stamp(now_ms) + 1
            first, last = expiry_key(shard, LIVE_CLASS), expiry_key(shard, LIVE_CLASS, behind_ms)
            effects.append(ScanRows(replica.address, (*tag, LIVE_CLASS), EXPIRY, first, last, LOOK_ROWS))
        if summary.tombstones and agreed_ms is not None:
            before_ms = agreed_ms - (replica.document_settings.tombstone_ms or replica.limits.tombstone_ms)
            first, last = expiry_key(shard, TOMBSTONE_CLASS), expiry_key(shard, TOMBSTONE_CLASS, max(before_ms, 0))
            past = (*tag, TOMBSTONE_CLASS, before_ms)
            effects.append(ScanRows(replica.address, past, EXPIRY, first, last, LOOK_ROWS))
        return effects

    def _on_looked(self, now_ms: int, leader: Leader | None, m: RowsScanned) -> list[Effect]:
        _, epoch, found, *rest = m.tag
        if leader is None or leader.epoch != epoch or not self._may_append(leader) or not m.rows:
            return []
        if found == LIVE_CLASS:
            due = [due_of(key, value) for key, value in m.rows]
            expired = [Expired(each.key, each.seqno) for each in due]
            leader.append_control(now_ms, Kind.EXPIRE, encode_expired(expired), count=len(expired))
            self._control = leader.head
            return []
        agreed_ms = leader.clocks.agreed_ms(now_ms)
        if agreed_ms is None:
            return []
        upto = purgeable(m.rows, rest[0], self._unprotected(agreed_ms))
        if upto > self.summary.purged:
            leader.append_control(now_ms, Kind.PURGE, argument=upto)
            self._control = leader.head
        return []

    def _unprotected(self, agreed_ms: int) -> int:
        """Return the highest offset that neither a named position nor a pin protects from a purge (U52, C2)."""
        bounds = [self.summary.applied, *(pin.at for pin in self.summary.pins.values())]
        named = self.replica.log.subscriptions.lowest(agreed_ms)
        if named is not None:
            bounds.append(named[1].offset - 1)
        return min(bounds)

    # --- log and rows together ----------------------------------------------------------------------------

    def _beside(self, writes: Sequence[Write]) -> list[Write]:
        """Return the rows to remove in the write that removes the log they stand for (U47, U50)."""
        extra: list[Write] = []
        for write in writes:
            if isinstance(write, Wipe):
                self._lost += self._give_up()
                extra += wipe(self.replica.shard)
            elif isinstance(write, DropBefore):
                extra.append(self._forget_outcomes(write.offset))
        return extra

    def _forget_outcomes(self, first: int) -> DeleteRange:
        """Keep the outcome of each entry that the log has or that a producer may still retry (U50)."""
        shard, producers = self.replica.shard, self.replica.log.producers
        if first > self._oldest and first - self._oldest_at >= len(producers):
            # It takes a look at each producer.  Places that are remembered later lie behind what is confirmed now.
            self._oldest, self._oldest_at = min(producers.oldest, first), first
        kept = max(min(first, self._oldest), 0)
        return DeleteRange(EFFECTS, prefix(shard), seqno_key(shard, kept))

    def _forget(self) -> None:
        """The rows are gone with the log, and so is what waits for them."""
        self.summary, self.durable, self.replica.folded = Summary(), -1, -1
        self.failover = FailoverLog()
        self._batches.clear()
        self._token += 1
        self._job, self._slice = "", None
        self._sweep, self._collect = False, None
        self._oldest = self._oldest_at = -1
        self.comparing.forget()

    def on_snapshot_rows(self, head: EntryId, m: SnapshotRows) -> tuple[list[Effect], bool | None]:
        """Take the next rows of a snapshot that ends at `head`.

        The second value says whether they are whole now; None: the snapshot will never be.

        The summary is written last, so rows without one are no documents (U47).  Raises RemoteViolation, for a row
        that cannot be read, too; then nothing of this part is stored.
        """
        replica = self.replica
        if not m.first and not replica.rows_wanted:
            return [], False
        writes, pulled = self._refill.take(m)
        if m.first:
            self._forget()   # of rows that were whole: their summary goes with them
            replica.rows_wanted = True
        if pulled is None:
            return [replica.persist(writes)], False
        if pulled.applied > head.offset and pulled.epoch > head.epoch:
            # The source follows a later leader by now: these rows do not fit the entries of this snapshot.
            return [replica.trace("snapshot_superseded", f"documents are at {pulled.applied}, it ends at {head}")], None
        self._forget()
        self.replica.rows_wanted = False
        return [self._adopt(pulled, writes)], True

    def _adopt(self, summary: Summary, writes: Sequence[Write] = ()) -> Effect:
        """Go on from rows of another member, once the store shows them with their summary."""
        self.summary, self.failover = summary, self._refill.failover
        row = self._refill.summary_row(summary)
        self._refill.forget()
        self._sweep = summary.tombstones > 0 and summary.purged >= 0
        self._collect = prefix(self.replica.shard)
        self._job = "replaced"
        self._number += 1
        self._batches.append(_Batch(self._number, summary.applied, {}, {}))
        return self.replica.persist([*writes, row], [Feed(RowsDurable(self.replica.address, self._number))])

    # --- where no member has the next entry (U47b) --------------------------------------------------------

    @property
    def pulls(self) -> bool:
        """Rows of another member are on their way."""
        return self._job == "rows"

    @property
    def replacing(self) -> bool:
        """The log begins above what the rows stand for, and those of another member are to take their place."""
        return self.summary.applied + 1 < self.replica.log.first or self._job in ("rows whole", "replaced")

    def on_gone(self, member: Member, first: int) -> list[Effect]:
        """A member has no entry below `first` any more; if the fold waits for one, its rows take the place of ours."""
        if self._job != "retry" or not self.summary.applied + 1 < first <= self.replica.confirmed + 1:
            return []
        return self._pull_rows(member)

    def _pull_rows(self, source: Member | None = None) -> list[Effect]:
        pull = self._refill.begin(source)
        if pull is None:
            return []
        self._job = "rows"
        replica = self.replica
        what = f"folded up to {self.summary.applied}, the log begins at {replica.log.first}"
        return [replica.trace("documents_pulled", what), pull]

    def on_other_rows(self, now_ms: int, m: SnapshotRows) -> list[Effect]:
        """Take the next rows of another member; a part that is none ends the pull, and another member is asked."""
        replica, refill = self.replica, self._refill
        if not self.pulls or not refill.is_of(m.epoch):
            return []
        try:
            writes, pulled = refill.take(m)
        except RemoteViolation as violation:
            return [replica.trace("violation", str(violation)), *self._retry_later(now_ms)]
        if m.first:
            self._forget()
            self._job = "rows"
        if pulled is not None and pulled.applied + 1 < replica.log.first:
            return [replica.persist(writes), *self._retry_later(now_ms)]   # it has folded less than our log needs
        if pulled is not None:
            refill.pulled, self._job = pulled, "rows whole"
            refill.waits()   # the first look
            return [replica.persist(writes), self._whole_later(now_ms)]
        return [replica.persist(writes)]

    def _whole_later(self, now_ms: int) -> Effect:
        return SetTimer(self.replica.address, WHOLE_TIMER, now_ms + WHOLE_MS)

    def on_pull_failed(self, now_ms: int, m: SnapshotFailed) -> list[Effect]:
        return self._retry_later(now_ms) if self._refill.is_of(m.epoch) else []

    def _replaced(self) -> list[Effect]:
        """The log has the cut of the rows: they are the documents once the summary is durable beside them."""
        pulled = self._refill.pulled
        assert pulled is not None, "U47b: no rows to go on from"
        return [self.replica.trace("documents_replaced", f"folded up to {pulled.applied}"), self._adopt(pulled)]

    def _answer_replaced(self) -> list[Effect]:
        """Answer the callers whose entries another member folded."""
        applied, effects = self.summary.applied, self._answer_askers()
        for base in [base for base, each in self._waiting.items() if base + each[0][1].count - 1 <= applied]:
            for request, appended in self._waiting.pop(base):
                effects += self._on_appended(request, appended)
        return effects

    def _clean(self) -> list[Effect]:
        """Remove what is left of rows that were never whole, before anything is folded here."""
        self._forget()
        self._refill.forget()
        self._job = "cleaning"
        self._number += 1
        return [self.replica.persist(wipe(self.replica.shard), [Feed(RowsDurable(self.replica.address, self._number))])]

    def _give_up(self) -> list[Effect]:
        """The rows go with the log: callers that wait for them have to ask another member.

        The entries of writers are confirmed: they send the same sequence to the leader, which knows the outcome (U50).
        """
        writers = [request for each in self._waiting.values() for request, _ in each]
        others = [each.request for each in self._readers] + [each.request for each in self._askers]
        self._waiting, self._readers, self._askers = {}, [], []
        self._forget()
        self._refill.forget()
        again = "the replica is removed here; retry the same sequence"
        return [
            *(self._refused(request, Reason.NOT_LEADER, again) for request in writers),
            *(self._refused(request, Reason.NO_REPLICA, "the replica is removed here") for request in others),
        ]


class StoredRows:
    """The rows of a disk as they are read when a node starts."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored

    def get(self, family: str, key: bytes) -> bytes | None:
        return next((value for _, value in self._stored.rows(family, key, key + b"\0")), None)

    def scan(self, family: str, first: bytes, behind: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._stored.rows(family, first, behind)


def _written(request: int, appended: Appended, outcomes: tuple[Outcome, ...]) -> Reply:
    durability = Durability(appended.durability)
    return Reply(request, Written(appended.epoch, appended.base, appended.count, durability, outcomes))
