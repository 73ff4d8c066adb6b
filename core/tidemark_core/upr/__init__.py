"""Change streams of documents: from any member, at two levels, with positions that survive failover.

The rules, with their reasons and tests, are in `docs/protocols/upr.md`:

U54 A history is a lineage and an epoch
U55 A position is the end of a complete snapshot
U57 One function decides whether a stream may start

`history` names histories, `positions` what a consumer stores, `decision` whether a member can serve it and `common` how
far both agree.  Stays out: folding documents, their storage, the connection.
"""
