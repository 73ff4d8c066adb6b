"""Named subscriptions of one shard: where each reader stands, kept in the log itself, and what that keeps from going.

Folding         B1 POSITION is a control entry: name, next offset wanted, lease in ms, 0 for deleted.  The newest one
                of a name counts.  B2 only a confirmed one counts, and none that a ROLLBACK covers: whoever committed
                it was not told so, and reads again at worst.  B3 undone exactly on truncation, carried in
                checkpoints with what is not decided yet, kept when the log is trimmed.
Leases          B4 a subscription pins from its position on until its lease has passed since it was committed last,
                judged by the leader's clock at the look before, as age is.  B5 it is forgotten once the log's own
                clock is past its lease: decided at look-up, so that every member decides alike; a checkpoint frees
                the memory.
Committing      B6 a position moves back by a seek alone.  B7 what is in the log already is not appended again: the
                same or a lower position appends when the lease is another one or a tenth of it is over.  B8 it is
                answered once confirmed; until then a repeat waits for the same entry.  B9 names are bounded, and so
                are entries not yet decided.
Trimming        B10 nothing at or above the lowest live position goes, but for the hard bound on size; nothing at all
                before a new leader knows what was confirmed before it.

`fold` is the fold, `view` what a person sees.  Stays out: who may commit and who waits (`replication.positions`), what
is removed when (`replication.retention`), what a reader has consumed.
"""
