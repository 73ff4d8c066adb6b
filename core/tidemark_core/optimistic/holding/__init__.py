"""Holding: one range at one member, from its messages to its rows on disk.

`layout` has the families and keys of rows, `states` the stored standing, `hands` the rows that messages wait for or
that are on their way to the disk, `walks` reads many rows, `removing` removes what is void, `unit` is the whole.
`pulls` runs exchanges, `copying` those of a move.
Stays out: what becomes of a cell (`owner`), other ranges.
"""
