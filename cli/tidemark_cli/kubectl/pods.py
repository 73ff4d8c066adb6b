"""What is wrong with a node, from its pod and from what the cluster says of it.

Pure.  Stays out: what follows for shards (explain).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tidemark_operator.resources.labels import READINESS_GATE

from ..reconfigurations import condition_of, status_of
from .state import State, said

Object = dict[str, Any]


class Trouble(NamedTuple):
    """What is wrong, and what to do about it; `passing`: it counts only where the operator does not reach the node."""

    what: str
    todo: str
    passing: bool = False


def node_trouble(state: State, node: str) -> Trouble | None:
    """Return what is wrong with a node, None when nothing is."""
    told = state.nodes.get(node)
    if told is None:
        return Trouble(f"{node} is not a node of the cluster any more", "Swap it for another one.")
    reached = bool(told.get("ready"))
    pod = pod_trouble(node, state.pods.get(node)) if state.pods is not None else None
    if pod is not None and not (reached and pod.passing):
        return pod
    if reached:
        return None
    message = f" ({told['message']})" if told.get("message") else ""
    return Trouble(f"{node} is {told.get('state', 'not ready')}: the operator does not reach it{message}",
                   f"See `kubectl logs {node}` and `kubectl describe pod {node}`.")


def pod_trouble(name: str, pod: Object | None) -> Trouble | None:
    """Return what is wrong with a pod, None when it is ready."""
    if pod is None:
        return Trouble(f"the pod {name} does not exist",
                       "The operator makes it again; if it does not, see `kubectl get events` and the operator's log.")
    if "deletionTimestamp" in pod["metadata"]:
        return Trouble(f"the pod {name} is being deleted", "The operator makes it again when it is gone.")
    status = status_of(pod)
    for container in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
        waits = (container.get("state") or {}).get("waiting") or {}
        if waits.get("reason") not in (None, "", "ContainerCreating", "PodInitializing"):
            return Trouble(f"the pod {name} waits: {said(waits)}", _waiting_todo(name, waits["reason"]))
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") == "False" or (scheduled == {} and status.get("phase") == "Pending"):
        return Trouble(f"the pod {name} has no machine: {said(scheduled) or 'no scheduler has placed it'}",
                       f"Add or free a machine that fits it, see `kubectl describe pod {name}`.")
    if status.get("phase") == "Pending":
        machine = pod["spec"].get("nodeName") or "its machine"
        return Trouble(f"the pod {name} is Pending on {machine}: {_starting(status)}",
                       f"See the events in `kubectl describe pod {name}`: a volume, image or Secret may be missing.")
    if status.get("phase") in ("Failed", "Succeeded"):
        return Trouble(f"the pod {name} is over ({status.get('reason') or status['phase']})",
                       "The operator makes it again.")
    if condition_of(pod, "Ready").get("status") == "True":
        return None
    if condition_of(pod, "ContainersReady").get("status") == "True":
        gate = condition_of(pod, READINESS_GATE)
        why = "the operator does not reach it with the disk that its shards know" if gate else "nobody vouches for it"
        return Trouble(f"the pod {name} runs, but {why}",
                       f"Is the operator running? See its log and `kubectl logs {name}`.")
    return Trouble(f"the pod {name} does not say that it is ready",
                   f"See `kubectl logs {name}` and the probes in `kubectl describe pod {name}`.", passing=True)


def pod_text(pod: Object | None) -> str:
    """Return the state of a pod in one word or two."""
    if pod is None:
        return "missing"
    trouble = pod_trouble(pod["metadata"]["name"], pod)
    if trouble is None:
        return "Ready"
    status = status_of(pod)
    for container in status.get("containerStatuses", ()):
        reason = ((container.get("state") or {}).get("waiting") or {}).get("reason")
        if reason:
            return str(reason)
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    phase = str(status.get("phase") or "Unknown")
    return "NotReady" if phase == "Running" else phase


def restarts(pod: Object) -> int:
    return sum(int(each.get("restartCount", 0)) for each in status_of(pod).get("containerStatuses", ()))


def _starting(status: Object) -> str:
    """Return what is said of a pod whose containers do not run yet."""
    for container in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
        if waits := (container.get("state") or {}).get("waiting"):
            return said(waits)
    return "its machine has not begun to start it"


def _waiting_todo(name: str, reason: str) -> str:
    if "Image" in reason:
        return "Put the image and its registry right (spec.image of the cluster)."
    if reason == "CrashLoopBackOff":
        return f"See `kubectl logs {name} --previous`."
    return f"See `kubectl describe pod {name}`."
