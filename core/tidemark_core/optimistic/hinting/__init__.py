"""Hinting: changes that a node keeps for owners that could not be reached, until a write quorum has them (D73, D69).

`hints` says which hints a node takes, and has their bytes; `replaying` says when each is replayed; `keeping` is the
whole, with its disk.
Stays out: which nodes are asked to keep a change (`coordinating.writing`), rounds of the operator (`floors`).
"""
