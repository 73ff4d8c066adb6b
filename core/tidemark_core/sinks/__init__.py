"""Sinks of one shard: how far each job that writes in batches has come, kept in the log itself.

The rules, with their reasons and tests, are in `docs/protocols/sinks.md`:

W1 A part joins its batch before it appends
W2 A mark ends a batch and leaves no part out
W3 Only what is confirmed counts, and the fold follows the log
W4 A sink is forgotten when its lease ends
W5 Sinks, parts and ends are bounded

`fold` is the fold, `judging` who may join and what may be marked, `view` what a person sees.  Stays out: answering and
confirming (`replication.sinks`), the rows that a batch appends.
"""
