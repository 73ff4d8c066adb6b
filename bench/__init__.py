"""Benchmarks: `python -m bench [NAME ...]` from the root of the checkout, or `make bench`.

Every module below `bench` with a `run` measures one thing on real processes and says target, measured, met or not.
A figure that depends on the machine is put beside a limit or a peer that was measured in the same run.
`docs/performance.md` tells what limits the figures and how to read them.
"""
