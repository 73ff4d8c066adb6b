"""Sink of mode=log: tasks append the rows of a batch to a group's shards, each row once however often they are tried.

A row has its place by its number among the rows of its task: so a retry goes on where an attempt before it ended (P15).
"""
