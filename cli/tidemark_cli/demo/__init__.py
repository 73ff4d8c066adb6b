"""The demo: a cluster that loses its leader, swaps a node and gives every acknowledged record back exactly once.

Rooms: `packages` (the data), `ledger` (what was promised, and whether it was kept), `writer` (the load), `scenario`
(what happens, in order), `screen` (how it is told), `command` (the options).
"""
