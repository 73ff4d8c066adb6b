"""Change streams of documents: from any member, at two levels, with positions that survive failover.

The rules, with their reasons and tests, are in `docs/protocols/upr.md`:

U54 A history is a lineage and an epoch
U54b A record of documents has a format of its own
U55 A position is the end of a complete snapshot
U56 A stream scans one snapshot, then follows the feed
U57 One function decides whether a stream may start
U58 A rebuild replaces the view as a whole
U59 A snapshot counts only when it is whole
U60 ADVANCED moves the position where no row shows
U61 A slow consumer costs a bounded feed
U62 A part of a snapshot goes on where its end is
U63 Filters look at keys only
U64 All versions come from the log
U65 A tentative stream belongs to one leadership
U66 CONFIRMED and ROLLED_BACK decide tentative rows
U67 Undecided rows are an overlay in memory
U68 A barrier is a vector of read indexes
U69 A cookie only makes a member hurry

`history` names histories, `positions` what a consumer stores, `decision` whether a member can serve it and `common` how
far both agree.  `serving` is the member's side of a stream, with `feed`, `credit` and `filters`; `consuming` is the
consumer's side; `messages` is what they say.  `previewing` and `overlay` are the two sides at tentative level.
`barriers` is the consumer's side of barriers, `cookies` the member's; `silence` has the signs of life of a connection.
Stays out: folding documents, their storage, the connection.
"""
