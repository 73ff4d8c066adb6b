"""The status of every kind: one pure function each, from a dataclass of facts to the whole status.

`shard`, `group`, `keyspace`, `cluster` (with `kubernetes`, for facts that only Kubernetes has) and `reconfiguration`
compute a status; `standing` overlays a spec that is paused or refused, and covers objects that no store holds.
Conditions are tuples of type, status, reason and message; `ConditionMemory.stamp` adds times and the generation.
Stays out: gathering facts (`service`, `kube.showing`), writing a status (`kube.statuses`).
"""

from __future__ import annotations
