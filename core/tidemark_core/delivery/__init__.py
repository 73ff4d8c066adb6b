"""Single Copy Delivery: every record of a shard reaches a reader from exactly one node, and survives any node.

Source: LogDevice's Single Copy Delivery, rules S.  Readers talk to every member; each member decides for itself,
from the same facts, whether a record is its to send.

Who sends       S1 one node sends each record, not all that hold it.  S2 it is the first slot of the record's reading
                order; S3 and S35 are the source's tables.  S4 START says how to share the sending, and whom the
                reader knows to be down.  S5 slots in known_down are passed over.  S6 a node that finds itself in
                known_down acts as if it were not listed: that is how its return is seen, and why a reader must drop
                duplicates.  S7 a node outside the order never sends.  Control entries and holes are sent like
                records, so that absence is never the only evidence; by whoever sends the block they lie in.
Orders          K1 the leader gives each entry an order of all slots: first places even, the first R over as many zones
                as there are, slots believed dead right-most; one order for a block of the log.
Local reading   S31 the reader knows where it stands, S32 asks for it in START, and says how near each slot is, so that
                all decide alike.  S33 the priority is the number of location scopes shared, S37 with regions alone
                there are two.  S34 the left-most slot of the highest alive priority sends; S36 nobody alive there:
                the next priority.
Rewind          S8 a new generation starts at the next offset to deliver, on every node; what an older generation
                still brings is dropped.  One follows every change of known_down or of the mode.
Into known_down S9 a bad checksum.  S10 START cannot be sent.  S11 no STARTED in time.  S12 STARTED with an error.
                S13 the stream was closed.  S14 no progress for `scd_timeout_ms` and nothing from the node about
                the next offset, when others have spoken: never the whole read set.  And whoever breaks the protocol.
Out of it       S15 nodes in known_down are sent START all the same.  S16 at every slide of the window a listed node
                that was sending is taken out, once what it sent damaged is behind.
All send all    S17 listed nodes and nodes known not to have the next offset are all there are: at once.  S18 no
                progress for `all_send_all_timeout_ms`, all being silent or known_down unchanged for so long; and
                again while there is none.  S19 it costs the factor, and is the last resort.  S20 no gap is delivered
                before it, unless a node vouches for it (HOLE, TRIM).  K18 DATALOSS: every member, in one generation,
                has answered past the offset or sent it damaged; who is silent or refuses is waited for.  S21 back to
                single copy at the next slide.
Not held        K17 a member whose turn it is and that does not keep the payload says so: it cannot send that offset,
                which is no gap and no fault (S17 follows).  K18 holds for it as for a damaged one.
Honest clocks   A reader whose application is slow, or that has everything released, blames nobody; time counts from
                when it began to wait, and from when somebody had answered.
Slow members    Who makes the reader wait and takes ten times as long as the others is passed over like the listed for
                a minute, doubling to thirty; down wins over slow; a majority is never kept out.
Windows         A member begins an entry while it has sent less than it was granted.  What is granted follows what is
                delivered and taken by the application, so memory is bounded by two windows and an entry per member.

`copysets` chooses orders, `order` says who sends, `location` what is near, `messages` what is said.  A member:
`stretch` cuts the log into items and finds what is its to send, `sender` says what comes next.  A reader: `source` is
what is known of one member, `buffer` keeps what came early, `slowness` compares members, `reader` follows the stream
and fails over.
"""
