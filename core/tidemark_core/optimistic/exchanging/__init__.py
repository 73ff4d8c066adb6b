"""Exchanging: one owner takes from another one what it lacks of a range (D74).

`tree` keeps digests of the rows of a range, `messages` has what the two say, `pulling` is the side that takes, `giving`
the side that answers.  All of it is pure.
Stays out: who exchanges with whom, and when.
"""
