"""Reading logs: `reader` and `stream` plan batch and streaming queries, `tasks` read what was planned.

`facts` asks leaders where a log begins and ends, `offsets` has what users write and what checkpoints store, `planning`
makes ranges of both, `rows` makes Arrow columns of stored batches.
"""
