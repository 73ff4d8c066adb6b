"""Named subscriptions of one shard: where each reader stands, kept in the log itself, and what that pins.

The rules, with their reasons and tests, are in `docs/protocols/subscriptions.md`:

B1  A position is a record of the log
B2  Only a confirmed position counts
B3  The fold follows the log
B4  A lease pins the log
B5  An expired subscription is forgotten
B6  Only a seek moves a position back
B7  A standing reader writes little
B8  A commit is answered once confirmed
B9  Names and waiting commits are bounded
B10 Trimming stops at the lowest position

`fold` is the fold, `view` what a person sees.  Stays out: who may commit and who waits (`replication.positions`), what
is removed when (`replication.retention`), what a reader has consumed.
"""
