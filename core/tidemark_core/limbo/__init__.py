"""The limbo of one shard: what is appended and not yet confirmed, in one ordered queue, with honest outcomes.

The log alone decides outcomes; the source's rollback is unsafe next to elections.  The rules, with their reasons and
tests, are in `docs/protocols/limbo.md`:

A1  No caller waits for CONFIRM
L1  Acknowledgements count durable copies
L3  `confirmed` moves entry by entry, never beyond commit
L4  A NOOP confirms nothing
L5  The log decides, and the first decision wins
L6  A new leader keeps inherited decisions
L7  A rollback begins at the oldest undecided QUORUM entry
L8  A covered entry is never confirmed
L9  Watermarks travel lowered
L10 Each node judges by its own cut
L11 CONFIRM is a hint
L12 A new leader serves what it knew
L13 `confirmed` never falls, also across restarts
L14 LOCAL is acknowledged once no older entry can be rolled back
L15 An acknowledged LOCAL entry is not rolled back
L16 COMMIT waives the synchro quorum for itself
L17 Answers leave in order
L18 The producer table folds the whole log
L19 A known sequence is never appended again
L20 NOT_FOUND is advice
L21 A lost LOCAL acknowledgement shows as a gap
L22 A producer acknowledges its rollback
L25 The producer table is bounded
L25b A caller's new producers evict its own
L26 A claim fences every older process
L27 A claim is answered with what stands in front of it
L28 What a claim appends is a prefix
L29 A batch that expects an offset comes behind no other record
F1  Two decision records
F2  One limbo per shard
F3  The synchro quorum lies between a majority and all members
F4  The limbo shows its queue, length, bytes and rollbacks
F5  A limbo item shows its level, age, state and callers
F6  QUORUM waits for the disk and for acknowledgements
F7  Other levels wait behind a QUORUM append
F8  LOCAL in an empty limbo
F9  The queue is in the order of age
F10 A lost write leaves no entry
F11 Replication does not wait for the leader's disk
F12 A follower acknowledges by offset
F13 A repeated acknowledgement changes nothing
F14 `confirmed` never falls
F15 An early acknowledgement is remembered
F16 The leader's copy counts as one
F17 Decided entries complete in order
F18 The acknowledgement of a CONFIRM decides nothing
F19 Followers take decisions from the log
F20 The wait is bounded
F21 Only the oldest timeout rolls back
F22 A confirmed entry is not rolled back
F23 A rollback begins at the timed-out entry
F24 Newer entries cascade
F25 A caller cannot cancel its entry
F26 Rollbacks are counted
F27 No append during the write of a rollback

`decisions` is the fold, `waiting` the leader's queue, `quorum` counts, `settings` holds what an operator asks for,
`view` what a person sees.
"""
