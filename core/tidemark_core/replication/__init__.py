"""Log replication and coordination of one shard: who leads, what is in the log, who holds it, what is safe.

Source: the Oxia log replication protocol, with the holes of its published model repaired.  Each rule's number appears
in the asserts and in the names of the tests that hold it.

The log and its copies, with reasons and tests in `docs/protocols/replication.md`:

A2  Watermarks keep their order
A4  Offsets count records
O5  Entry ids compare by epoch, then offset
O6  A cursor per follower
O9  A fenced node stops all duties
H1  Truncation repeats until the head matches
O21 A follower of an older epoch is cut to that epoch's end
O22 A higher head is cut to the leader's head
O23 Pushing starts after the truncation
L2  Each append continues the log
O24 Commit needs a majority in the current epoch
O25 Older entries commit indirectly
O26 Nothing is applied beyond commit
O46 The latest offset takes a round to a majority
H3  Commit never falls
K1  Each data entry names an order of all slots
K2  R lies between a majority and n
K3  Every member gets the whole entry
K4  Acknowledgements are cumulative and of this epoch
K5  Matches start at nothing in each epoch
K6  When a payload is surplus
K7  Only surplus payloads are left out
K8  A dropped payload is committed in the same write
K9  A missing payload is in order or damage
K10 An entry passes three stages
K11 No stage waits for the dead
K12 A new member gets every payload that is not surplus
K13 Payloads are filled before a change is in force
K14 A wiped disk is a new member
K14b A synced log that is gone is damage
K14c A member that refuses to be cut below its commit is evidence of a loss
K14d One act makes a holdout the source of its shard
K14e One act makes a survivor of lost disks the source of its shard
K15 A leader lacks no payload above commit
K15b A replica reads what lies above commit before it leads
K15c A majority without damage elects without the damaged member
K15d A leader that cannot read what a follower needs resigns
K16 A leader fetches for its followers
K17 A sender without the payload answers NOT_HELD
K18 DATALOSS needs the answer of every member
K19 Payloads play no part in an election
K20 A leader appends nothing that too few disks can store
K20b A full disk stores what is under way
K21 A trim reaches a member with a full disk

Elections and changes of members, with reasons and tests in `docs/protocols/coordination.md`:

O1  Only the operator touches the metadata store
O2  An operator continues from the record alone
O3  Competing operators cost time only
O3b A living driver keeps its PREPARE
O4  Nodes know no membership of their own
H2  Every write compares the revision
O7  The new epoch is stored before any fence
O8  The whole fencing ensemble is fenced
O10 A majority must have answered
O11 The highest head leads
O12 Late answers are kept
O13 BecomeLeader carries the followers' heads
O14 The leader answers when its leadership is durable
O15 STEADY names the leader
O16 Late members are added
O17 Truncation runs while the shard serves
O42 A process speaks for itself only
O43 Nodes say whom they reach
O44 The leader reaches a majority
O45 In sync is who acknowledges
O18 A change in COMMIT enlarges the fencing ensemble
O19 The final ensemble leads
O20 A change in PREPARE is dropped
A3  A majority of the union or of the final ensemble
H5  The new member is fenced too
H6  A stalled contract is rolled back
H4  The factor is the ensemble's length
O27 One change at a time, on a led shard
O27b A contract starts only where it can commit
O28 A change takes a new epoch
O29 An election resolves a failed change
O30 PREPARE is stored first
O31 The leader adopts the epoch and silences the leaver
H3b A NOOP opens the epoch of a change
O32 The new member pulls the snapshot
O32b A seeded replica trusts its entries
O33 COMMIT is stored with the new member's head
O34 Commit swaps the cursors
O35 STEADY clears the operation
O36 The leader cannot leave
O47 A leader holds appends while it hands over
O37 An expand is a swap without an old member
O38 A contract ships nothing
O39 A contract waits for the remaining majority
O40 The operator repeats Commit
O41 Messages may be lost or repeated

Two facts without a number.  Retention (#281): the trim point is bounded by confirmed and by every member's match, and
does not move while members change.  Restart: a replica that led an epoch never leads that epoch again, because what it
sent and had not synced may live on elsewhere; hence LEADER is durable before the first push.

Roles: `follower` is fenced, truncates, appends, is seeded; `leader` assigns, pushes, commits, changes members;
`read_index` proves to callers where the log ends; `coordinator` elects and reconfigures from stored metadata; `replica`
holds what outlives a role; `log` is the fold of the log; `space` says which members can store; `invariants` look from
outside.  Of payloads: `copies` says who keeps them, `holding` what a replica keeps, `dropping` what a leader announces
of it, `stages` when readers get an entry, `fetching` and `filling` how missing payloads are obtained, `vetting` what a
replica looks at before it leads.  Of partial partitions: `hearing` says whose answers a leader hears, `reach` what the
coordinator makes of it.
"""
