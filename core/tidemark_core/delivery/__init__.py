"""Single Copy Delivery: every record of a shard reaches a reader from exactly one node, and survives any node.

Source: LogDevice's Single Copy Delivery, rules S.  Readers talk to every member; each member decides for itself,
from the same facts, whether a record is its to send.

Who sends       S2 the first slot of the record's reading order.  S5 slots in known_down are passed over.  S6 a node
                that finds itself in known_down acts as if it were not listed: that is how its return is seen, and
                why a reader must drop duplicates.  S7 a node outside the order never sends.  S33 S34 local
                reading: the left-most slot of the highest alive priority, the number of location scopes shared
                with the reader; S36 nobody alive there: the next priority.  Control entries and holes are sent
                like records, so that absence is never the only evidence.
Rewind          S8 a new generation starts at the next offset to deliver, on every node; what an older generation
                still brings is dropped.  One follows every change of known_down or of the mode.
Into known_down S9 a bad checksum.  S10 START cannot be sent.  S11 no STARTED in time.  S12 STARTED with an error.
                S13 the stream was closed.  S14 no progress for `scd_timeout_ms` and nothing from the node beyond
                the next offset.  Never the whole read set.
Out of it       S15 nodes in known_down are sent START all the same.  S16 at every slide of the window a listed node
                that was sending is taken out.
All send all    S17 listed nodes and nodes known not to have the next offset are all there are: at once.  S18 no
                progress for `all_send_all_timeout_ms`.  S19 it costs the factor.  S20 no gap is delivered before
                it, unless a node vouches for it (HOLE, TRIM).  S21 back to single copy at the next slide.
Honest clocks   A reader whose application is slow, or that has everything released, blames nobody.

`order` says who sends, `location` what is near, `reader` follows the stream and fails over.
"""
