"""Coordinating: operations of clients, at the node that a client asks.

`outcomes` has how an operation ends, `writing` is one write, `reading` one read, `archiving` reads and imports backups,
`retracting` takes stamps back.
All of it is pure.
Stays out: what members do with messages (`storing`).
"""
