"""Documents of one shard: the latest value by key, folded from the confirmed entries of its log.

The rules, with their reasons and tests, are in `docs/protocols/documents.md`:

U46 The source is the confirmed log
U47 One write holds whole entries
U47b A member that cannot fold on takes the rows of another one
U48 Rows
U49 The fold alone judges conditions
U50 The first outcome is kept
U51 A document expires by an entry
U52 Purged tombstones do not exist
U53 A read is granted when the store shows enough
U70 A pin is a cut that lasts
U70b A pin is its owner's
U70c An owner has a share of the pins
U71 Superseded versions are kept for pins
U72 Any member serves a pin
U73 A digest of all live documents
U73b Leaders compare digests

`payload` has the bytes of entries, `pinning` those of pins and whose they are, `requests` what clients ask, `rows` the
families, `fold` what entries do, `sweeping` what is removed in the background, `reading` what a snapshot of the rows
shows.  All of it is pure: values in, values out.  Stays out: the log, roles and messages (`replication`); when a slice
runs (`document_shard`).
"""
