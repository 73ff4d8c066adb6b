"""Reading changes of documents: `reader` and `stream` plan batch and streaming queries, `tasks` read what was planned.

`facts` asks leaders and pins, `position` has what checkpoints store, `showing` decides which rows a batch shows, and
`rows` makes Arrow columns of them.
"""
