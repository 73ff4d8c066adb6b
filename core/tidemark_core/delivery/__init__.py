"""Single Copy Delivery: every record of a shard reaches a reader from exactly one node, and survives any node.

Readers connect to every member; each member decides for itself, from the same facts, which records it sends.  A slow
member is passed over like a listed one for a minute, doubling to thirty; a majority is never kept out.  A member
begins an entry while it has sent less than the reader granted, so memory is bounded by two windows and one entry per
member.  The rules, with their reasons and tests, are in `docs/protocols/delivery.md`; K1, K17 and K18 in
`docs/protocols/replication.md`:

S1  One node sends each record
S2  The first slot of the order sends
S3  The source's table holds
S4  START carries the mode and known_down
S5  Slots in known_down are passed over
S6  A listed node sends as if it were not listed
S7  A node outside the order never sends
S8  A rewind starts a new generation everywhere
S9  A damaged record lists its sender
S10 A node that START cannot reach is listed
S11 A node that does not answer START is listed
S12 A node that refuses START is listed
S13 A closed stream lists its node
S14 A silent node is listed after scd_timeout_ms
S14b A node that says nothing is listed after silent_timeout_ms
S15 Listed nodes receive START too
S16 A sending node leaves known_down when the window slides
S17 All send all when no member can send the next offset
S18 All send all after a long standstill
S19 All send all is the last resort
S20 No loss is reported in single copy mode
S21 The next slide returns to single copy
S22 An append goes to more members than keep it
S23 The right-most holders drop first
S24 The writer is answered after the replication stage
S25 Readers wait for the sync leaders
S26 An entry is complete when its leaders hold it
S27 Each designated copy frees a surplus one
S28 The next holder of the order sends
S29 With all copies the stages are one
S30 Writers do not wait for a dead left-most slot
S31 A reader has a location
S32 START asks for local reading
S33 The priority counts shared scopes
S34 The left-most slot of the nearest group sends
S35 The source's local table holds
S36 With every local node down the next group sends
S37 Two levels are a special case

`copysets` chooses orders, `order` finds the sender, `location` says what is near, `messages` is the wire's content.  A
member: `stretch` cuts the log into items and finds its own, `sender` chooses the next message.  A reader: `source` is
the state of one member, `buffer` keeps early items, `slowness` compares members, `reader` follows the stream and fails
over.
"""
