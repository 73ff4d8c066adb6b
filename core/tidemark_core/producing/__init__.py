"""Producing: how a client has each batch in a log once, and in order (rules L18-L22 and L25).

`producer` is the machine of one shard, `flights` its batches under way with what rollbacks do to them, `acknowledged`
what it remembers of batches that have left, `messages` what the machine and its shell say to each other.
Stays out: filling batches, connections, who leads, and the words that callers hear.
"""
