"""Tidemark's decisions, and nothing else.

What may enter: values, arithmetic, state machines.  What may not: clocks, dice, threads, sockets, disks,
log output.  A shell turns bytes into events, calls `step(now_ms, events)` and runs the returned effects
(`base.effects`).  The same code runs in the pods and in the simulator.

Rooms: `base` (words every protocol shares), `replication` (log replication and coordination),
`shard` (composes the protocols of one shard), `node` (all shards of one node).
"""
