"""The node agent: a thin shell around the core.

`main` puts the parts together; `driver` runs the core; `store`, `peers`, `rpc` turn bytes into events and run effects.
Stays out of this house: decisions about epochs, offsets and quorums (core), bytes on the wire (wire).
"""
