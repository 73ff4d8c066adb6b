"""Keyspaces: values by key that any owner takes, merged without a leader.

The rules, with their reasons and tests, are in `docs/protocols/keyspaces.md`:

D52 An older copy of a disk begins a new life
D53 An actor is one run of a process
D54 Stamps are hybrid logical times
D55 A String is one cell
D56 An element has one cell for each actor
D57 An add replaces, a remove covers
D58 A clear is a stamp
D59 Expiry is a time in the cell
D60 Only a stored cell is an acknowledgement
D61 Cells of owners are internal
D62 One predicate decides what is stored
D63 A range has one record
D64 A move needs quorums of both lists
D65 A newer record fences the older one
D66 A pending owner copies from enough owners
D67 A move ends when no member can miss it
D68 A floor only rises
D69 Hints, then promises, then exchanges
D70 An absent owner blocks the floor
D71 A floor is adopted by those that promised it
D72 Of unequal floors the highest counts
D73 A hint stays until a write quorum has it
D74 An exchange gives one member what another one holds
D75 A read merges and repairs
D76 A write without enough answers is unknown
D77 A request may name its own quorums
D80 A member that left keeps the record
D81 A keyspace goes by the operator's word
D82 A backup has no cut
D83 A restore is an import from outside
D84 A stamp from the future is taken back at all owners
D85 The memory of digests has a bound

`stamps` draws stamps and dots, `cells` has the cells and rows with their bytes, `merge` merges rows and says what
they show, `writes` makes what an operation writes, `ring` has owners, quorums and moves, `records` their stored form,
`placing` chooses owners, `standing` is a member's part in a range, `owner` decides what a member stores, `messages`
has what members say, `storing` is what a member does with them, `archive` has the cells of a backup, `coordinating`
has writes, reads and backups at their coordinator, `exchanging` is how owners become equal, `moving` how owners
change, `mover` the operator's machine that moves ranges, `raising` its part that raises floors, `floors` how
tombstones go, `deleting` how keyspaces go, `settings` the bounds of a keyspace, `holding` is one range at one member
with its rows, `hinting` has what a node keeps for owners, `repairing` says which range is compared next, `pacing`
bounds its bytes, `retracting` takes stamps from the future back, `inspection` has what people see, `plane` has all
ranges of a node, `sizes` bounds keys and values.  All of it is pure.
Stays out: disks, links and timers.
"""
