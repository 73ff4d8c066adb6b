"""Runs of the keyspace plane: one range on a few nodes, its operator, its clients and the judge of what they see.

`world` puts the parts together, `node` is a shell of the core, `operator` moves the range and raises its floor,
`clients` ask, `judge` compares each answer with what was acknowledged before, `faults` breaks things, `healing` is the
end of a run, `traces` are stories that chance does not find.
Stays out: shards; the log plane of these nodes is empty.
"""
