"""The finalizer by which a log group stays until its data is deleted; set only where that is asked for.

Stays out: deleting the data.
"""

from __future__ import annotations

from ..resources.labels import Finalizer
from .api import CUSTOM, KubeApi, KubeRefused, Object
from .cache import Cache
from .queue import Later

DATA = Finalizer.DATA_DELETION.value


def has_data_finalizer(item: Object) -> bool:
    return DATA in item["metadata"].get("finalizers", ())


async def set_data_finalizer(api: KubeApi, cache: Cache, item: Object, wanted: bool) -> None:
    """Have it there or not; those of others stay.  Raises Later when the object changed meanwhile, KubeError."""
    if has_data_finalizer(item) == wanted:
        return
    metadata = item["metadata"]
    others = [each for each in metadata.get("finalizers", ()) if each != DATA]
    changes = {"metadata": {
        "resourceVersion": metadata["resourceVersion"], "finalizers": [*others, *([DATA] if wanted else [])]}}
    try:
        cache.learn(await api.merge(CUSTOM[item["kind"]], metadata["namespace"], metadata["name"], changes))
    except KubeRefused as refused:
        if refused.code == 404:
            return
        if refused.code == 409:
            raise Later(f"{metadata['name']} changed meanwhile") from refused
        raise
