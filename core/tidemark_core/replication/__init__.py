"""Log replication and coordination of one shard: who leads, what is in the log, who holds it, what is safe.

Source: the Oxia log replication protocol, with the holes found in its model repaired.  Rule numbers are those
of the design notes; each appears in the asserts and in the names of the tests that hold it.

Election        O7 epoch+1 and ELECTION are stored before anybody is fenced.  O8-O10 fence the whole fencing
                ensemble, wait for a majority.  O11 highest head (epoch, then offset) leads.  O12 O16 late answers
                are kept and added.  O13 O14 the leader attaches or truncates each follower.  O15 then STEADY.
                A3 while a change is stalled in COMMIT: fence old and new members (H5), accept a majority of the
                union or of the final ensemble, candidates only from the final one (O19); a stalled PREPARE is
                dropped (O20), a stalled CONTRACT rolled back (H6).  H4 the factor is the ensemble's length.
Fencing         O9 a fenced node stops all duties.  The pair (epoch, election id) is durable before the answer;
                idempotent for the same pair, refused for the same epoch with another id.  L1 the answer is
                ordered after all earlier writes, and no older-epoch ack leaves after it.
Truncation      O21 O22 to the leader's highest entry at or below the follower's head epoch.  H1 repeated until
                the follower's head is an entry of the leader's log.  Only a fenced replica truncates, never
                below commit.  O23 the cursor starts after the answer.
Steady state    Appends carry the previous entry id and are contiguous (L2, #1239).  Acks are cumulative, durable
                and of this epoch (K4).  O24 commit = highest offset of the *current* epoch on a majority, prefix
                included; O25 older entries commit indirectly; H3 it never falls.  L4 a control entry opens
                every epoch: EPOCH_START after an election, NOOP after PREPARE (H3b).
                L9 watermarks travel lowered to what the message vouches for, applied only when it matched.
Changes         O27 only on a led shard with nothing else running.  O30 O33 written ahead, one at a time.  O31 the
                leader adopts the epoch and silences the old member.  A3 COMMIT is stored only after the new
                member durably holds everything of the leader's log at PREPARE.  O36 the leader cannot leave.
                O39 O40 a contract waits until commit is not affected.  PREPARE can be aborted.
Identity        K14 a member is (node, incarnation).  A wiped disk neither votes nor acks; it returns by a swap
                into its own slot.
Producers       L18 (producer, sequence) -> place is a fold over the whole log, undone on truncation, carried in
                checkpoints.  L19 known -> its fate, next -> append, higher -> SEQUENCE_GAP, forgotten ->
                SEQUENCE_TOO_OLD.  L21 a lost LOCAL acknowledgement shows as a gap.
Retention       #281 the trim point is bounded by confirmed and by every member's match, and rests while members
                change.  The leader looks by itself; an entry goes when it was of age at two looks.
Copies          R of n members keep each payload ("payloadCopies"); R = n unless the shard's record says otherwise.
                K1 each data entry names a reading order of all slots, chosen by the leader, kept for a block of the
                log, never changed; a swap changes who sits in a slot.  K2 a majority <= R <= n; designated: the first R
                of the order.  K3 an entry goes whole to every member, header and payload in one write, and commits as
                ever.  K6 an entry is surplus at a slot when it is committed and R members strictly left of the slot
                have acknowledged it; a slot that is leaving or not in force yet does not count.  K7 only what is
                surplus is dropped, sent or seeded without payload: never at a designated member.  K8 such a member
                has it committed in the same write, and takes no header alone if it is designated, above the
                commit it is told, or of another epoch.  K9 a payload is missing only at or below commit, and only
                where its member is not designated.
                K10 S22-S28 in stages: a majority, and the writer is answered; the first `sync_leaders` of the order,
                and readers are given it; each further one of the first R frees the right-most holder of a surplus
                copy; the first `leaders`, and it is complete.  S29 where all keep everything the stages are one.
                S30 K11 nobody waits for the dead, nor longer than `release_ms`; they are right-most in new orders.
                K12 a new member is seeded with every payload that is not surplus in its slot, from whichever member
                has it; one that nobody can give delays, it is never skipped.  K13 before a contract or more copies
                are in force, whoever becomes designated fills what it lacks; nothing is dropped from PREPARE until
                the outcome is stored, for an election may still roll it back.  A contract gives the freed slot to
                the last member.  K15 a payload missing above commit is damage: such a replica does not lead,
                one whose log is as long does instead; where there is none the shard elects anew after `retry_ms`.
                K16 a leader that lacks what a follower needs fetches it and stores nothing; that follower waits,
                the others go on.  K19 who holds which payload plays no part in an election.
Restart         A replica that led an epoch never leads that epoch again: what it sent and had not yet synced
                may live on elsewhere.  Hence LEADER is durable before the first push.

Roles: `follower` is fenced, truncates, appends, is seeded; `leader` assigns, pushes, commits, changes members;
`coordinator` elects and reconfigures from stored metadata; `replica` holds what outlives a role; `log` is the
fold of the log; `invariants` look from outside.  Of payloads: `copies` says who keeps them, `holding` what of them a
replica keeps, `dropping` what a leader tells of it, `stages` when readers are given an entry, `fetching` and
`filling` how what is missing is got.
"""
