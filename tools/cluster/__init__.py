"""Tidemark on real kubelets, on this machine: `python -m tools.cluster` (`make test-cluster`).

Outside, `__main__` looks whether the machine permits it (`requirements`) and makes what can be kept: programs
(`tests.kube.binaries`) and Debian trees (`debian`).  `inside` then runs in namespaces of its own.  There the control
plane (`control_plane`), a registry with images (`images`) and the machines (`machines`) live and end together.
`scenarios` break things while a `ledger` writes.
"""
