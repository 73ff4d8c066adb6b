"""Reading documents: `reader` pins their state for a batch query, `tasks` read a shard of it, `rows` makes columns."""
