"""The limbo of one shard: what is appended and not yet confirmed, in one ordered queue, with honest outcomes.

Source: Tarantool's quorum-based synchronous replication (rules F), with rules L where the two differ; the
source's rollback is unsafe next to elections, here every outcome is derived from the log.

Records         F1 CONFIRM(L) and ROLLBACK(from) are control entries.  L5 fold: an entry is visible at or below
                the cut (`confirmed`) unless a ROLLBACK at r covers it: from <= entry < r, r <= cut.  The first
                decision wins, control entries are never hidden.  L11 CONFIRM(L) is a hint for restarts and
                tails, written after the decision; it is never waited for (A1).
Deciding        L1 K4 acks count durable copies, the leader's own included (F16), of this leadership.  L3 the
                leader walks `confirmed` entry by entry, never beyond commit: QUORUM passes at the synchro
                quorum, LOCAL, COMMIT and control entries at commit, L16 a COMMIT entry waives the synchro
                quorum for itself only.  EPOCH_START passes at commit and takes everything inherited with it; the
                synchro quorum is not applied again.  L4 a NOOP confirms nothing, the limbo goes on across it.
                At a ROLLBACK's range the walk stops at from-1 until r is committed, then jumps to r.
                F15 a follower may acknowledge before the leader's own disk.
Rolling back    F20 F21 the wait is bounded, counted from its start; only the oldest entry's timeout decides.
                L7 ROLLBACK(from): from is the oldest undecided QUORUM entry of this leadership that is not
                covered, EPOCH_START is confirmed, from > confirmed.  Newer ones cascade (F23, F24, F27), LOCAL
                included.  Appends are refused until the record is durable here.  L8 from then on nothing
                confirms its range: no late ack, no change of quorum or ensemble.
Outcomes        CONFIRMED; QUORUM_TIMEOUT, outcome unknown, at the deadline; ROLLED_BACK once confirmed >= r.
                `Immediate` answers ROLLED_BACK when r is durable on the leader alone: the source's way, unsafe
                when the leader is lost.  L17 successes leave oldest first, a rollback newest first.
LOCAL           L14 acknowledged in order, when EPOCH_START is confirmed, no undecided uncovered QUORUM entry
                precedes it, and it is durable on the leader (F7, F8); visible only at `confirmed`.  L15 an
                acknowledged LOCAL entry is never rolled back; only a failover may lose it.
Watermarks      L9 a watermark sent to a follower is lowered out of ranges (`safe_cut`).  L10 every node judges by
                its own `confirmed`.  L12 a new leader serves up to the `confirmed` it already knew.  L13 after a
                restart `confirmed` is the durable one, or a CONFIRM in the durable log; never from EPOCH_START.
Producers       L18 L19 a rolled-back sequence is used up and answers ROLLED_BACK for ever.  L20 NOT_FOUND is
                advice, never an outcome.  L22 whoever was rolled back at r goes on only with `resume_after` = r.
Quorum          A formula over N, the ensemble in force when the decision is taken; a majority at least, all
                members at most.  Acks from at least Z zones may be asked for.  F3.

`decisions` is the fold, `waiting` the leader's queue, `quorum` counts, `settings` is what an operator asks for,
`view` what a person sees.
"""
