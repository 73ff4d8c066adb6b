"""Appending: what users call to append, and the shells of the producers that do it.

`appender` is what users call, `checks` of it aside; `records` puts checked records into batches, `batches` decides when
one leaves, `pending` holds its callers and `columns` the records of a call; `whole` makes Arrow columns one batch.
`shell` runs one producer of core, `links` are its connections, `endings` the errors that callers get, `room` bounds the
memory.
Stays out: sequences and retries (core's `producing`), who leads (routing), writes of documents.
"""
