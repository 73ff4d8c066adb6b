"""Keyspaces: values by key that any owner takes, merged without a leader.

The rules, with their reasons and tests, are in `docs/protocols/keyspaces.md`:

D53 An actor is one run of a process
D54 Stamps are hybrid logical times
D55 A String is one cell
D56 An element has one cell for each actor
D57 An add replaces, a remove covers
D58 A clear is a stamp
D59 Expiry is a time in the cell

`stamps` draws stamps and dots, `cells` has the cells and rows with their bytes, `merge` merges rows and says what they
show, `writes` makes what an operation writes.  All of it is pure: values in, values out.
Stays out: owners, quorums and messages.
"""
