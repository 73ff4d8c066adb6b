"""Events of an object, as the API server has them."""

from __future__ import annotations

from collections.abc import Callable

from tests import waiting

from .client import Kube, Object
from .operators import EVENTS


async def told(kube: Kube, kind: str, name: str) -> list[Object]:
    """Return the events of an object, the oldest first."""
    found = [event for event in await kube.list(EVENTS)
             if (event["regarding"]["kind"], event["regarding"]["name"]) == (kind, name)]
    return sorted(found, key=lambda event: event["eventTime"])


async def until(kube: Kube, kind: str, name: str, holds: Callable[[list[Object]], bool]) -> list[Object]:
    """Return the events of an object as soon as `holds` of them."""
    found: list[Object] = []

    async def look() -> bool:
        found[:] = await told(kube, kind, name)
        return holds(found)

    try:
        await waiting.until(look, f"the events of {kind} {name}")
    except AssertionError as late:
        raise AssertionError([(event["reason"], event["note"], event.get("series")) for event in found]) from late
    return found


def reasons(found: list[Object]) -> list[str]:
    return [event["reason"] for event in found]
