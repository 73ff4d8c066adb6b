"""The demo: a cluster that loses its leader, swaps a node, is read by Spark, is read while a node dies, feeds a view of
documents, loses two owners of keys, has a majority paused, and keeps every promise it made.

Rooms: `packages` (the data), `ledger` (what was promised, and whether it was kept), `writer` (the load), `scenario`
(what happens, in order), `spark` (its act about Spark) with `spark_job` (the program),
`reading` (its act about reads), `view` (its act about documents), `keys` (its act about a keyspace) with `holdings`
(what owners hold of what was acknowledged), `majority` (its last act) with `outcomes` (the answer to each append, and
whether it is true), `acts` (what several acts need), `screen` (the terminal), `command` (the options).
"""
