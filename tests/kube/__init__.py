"""The Kubernetes test kit: a real API server without containers, and pods that are processes of this machine.

`fixtures` offers it to every test below `tests`; docs/testing.md tells how to use it.
"""
