"""Deterministic world around the core: network, disks, clocks, metadata store, operators, clients, faults, checkers.

One seed is one run: `python -m tidemark_sim --seed 7`.  Everything that happens is an event of one queue, ordered
by virtual time and then by birth; every choice comes from one `Dice`.  The world imports `tidemark_core` and
nothing else of the product: the cores it drives are the ones that nodes and operators run.

Rooms: `world` is the queue and the two phases of a run; `node` and `operators` are the shells; `network`, `disk`,
`metadata`, `shard_map` are what shells stand on; `clients`, `delivery` and `admin` are those who want something;
`faults` breaks things; `checkers` hold one promise each; `liveness` judges the end; `profiles` says what a run looks
like; `mutants` and its parts (`limbo_mutants`, `delivery_mutants`, `copies_mutants`) are the product minus one repair.
Stays out: threads, real time, sockets, any import of node, operator, client or wire.
"""
