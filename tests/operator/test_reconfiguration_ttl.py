"""What finished long ago is removed: from the store by a look, from the API server behind it; the last ten stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from tidemark_operator.kube.run import ClusterRun
from tidemark_operator.metadata import StoredObject
from tidemark_operator.reconfigure import FINISHED_KEPT, Reconfigurer


def ago(seconds: int) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def stored(number: int, stage: str, ended_s: int, ttl_s: int) -> StoredObject:
    return StoredObject(
        {"metadata": {"name": f"act-{number:02}"}, "spec": {"ttlSecondsAfterFinished": ttl_s}}, "uid", ago(9_000),
        number=number, status={"stage": stage, "completionTime": ago(ended_s)})


async def removed(*items: StoredObject) -> list[str]:
    found: list[str] = []

    async def delete(_kind: str, name: str) -> None:
        found.append(name)

    known = {item.name: SimpleNamespace(value=item) for item in items}
    made: Any = Reconfigurer(
        None, SimpleNamespace(delete=delete), SimpleNamespace(reconfigurations=known), *[None] * 7)  # type: ignore[arg-type]
    await made.remove_old()
    return found


async def test_the_oldest_go_when_their_time_is_up_and_the_last_ones_stay() -> None:
    old = [stored(number, "Finished", 700, 600) for number in range(FINISHED_KEPT + 3)]
    assert await removed(*old) == ["act-00", "act-01", "act-02"]
    assert await removed(*old[:FINISHED_KEPT]) == []
    assert await removed(*old[:2], *(stored(number, "Finished", 0, 600) for number in range(2, 14))) == [
        "act-00", "act-01"]
    assert await removed(*(stored(number, "Moving", 700, 600) for number in range(14))) == []


async def test_the_object_follows_when_its_time_is_up() -> None:
    deleted: list[tuple[str, str]] = []

    async def delete(_kind: Any, _namespace: str, name: str, uid: str) -> None:
        deleted.append((name, uid))

    run: Any = SimpleNamespace(_api=SimpleNamespace(delete=delete), namespace="data")
    for name, ended_s in (("old", 700), ("young", 500)):
        await ClusterRun._end(run, {
            "kind": "Reconfiguration", "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": {"ttlSecondsAfterFinished": 600}, "status": {"stage": "Finished", "completionTime": ago(ended_s)}})
    assert deleted == [("old", "uid-old")]
