"""Events as they are written: series, budgets, and an API server that says no, forgets, or is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tidemark_operator.kube import events
from tidemark_operator.kube.api import KubeAway, KubeRefused
from tidemark_operator.kube.events import EventWriter
from tidemark_operator.resources.events import EventReason as E


class Server:
    """Keeps events; `trouble` is raised instead, once for each."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}
        self.requests = 0
        self.trouble: list[Exception] = []
        self.after = False  # whether trouble comes behind the deed, as when an answer is lost

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.requests += 1
        name = manifest["metadata"]["name"]
        if name in self.made:
            raise KubeRefused(409, "AlreadyExists", "there")
        if self.trouble and not self.after:
            raise self.trouble.pop()
        self.made[name] = {**manifest}
        if self.trouble:
            raise self.trouble.pop()
        return manifest

    async def merge(self, kind: Any, namespace: str, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        self.requests += 1
        if self.trouble:
            raise self.trouble.pop()
        if name not in self.made:
            raise KubeRefused(404, "NotFound", "gone")
        self.made[name].update(changes)
        return changes

    def counts(self) -> list[int]:
        return [each.get("series", {}).get("count", 1) for each in self.made.values()]


class Clock:
    def __init__(self) -> None:
        self.at = 1_000.0

    def __call__(self) -> float:
        return self.at


def item(kind: str = "TidemarkCluster", name: str = "prod", **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "tidemark.dev/v1alpha1", "kind": kind,
            "metadata": {"namespace": "data", "name": name, "uid": f"uid-{kind}-{name}", **metadata}}


POD = {**item("Pod", "prod-1"), "apiVersion": "v1"}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def writer(server: Server, clock: Clock) -> EventWriter:
    return EventWriter(server, clock, lambda: f"at {clock.at}")  # type: ignore[arg-type]


async def rest(writer: EventWriter, clock: Clock, seconds: float = 60) -> None:
    """Let so much time pass, and have written what becomes due meanwhile."""
    end = clock.at + seconds
    while clock.at < end:
        wait_s = await writer._write_due()
        if writer._news.is_set():
            continue
        clock.at = end if wait_s is None else min(end, clock.at + max(wait_s, 0.001))


async def test_an_event_says_what_people_need(writer: EventWriter, server: Server, clock: Clock) -> None:
    writer.tell(item(), E.NODE_UNREACHABLE, "prod-1: no answer", related=POD)
    await rest(writer, clock)
    (made,) = server.made.values()
    assert made["metadata"]["name"].startswith("prod.")
    assert (made["type"], made["reason"], made["action"]) == ("Warning", "NodeUnreachable", "Observe")
    assert (made["reportingController"], made["eventTime"]) == ("tidemark.dev/operator", "at 1000.0")
    assert made["regarding"] == {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "TidemarkCluster", "namespace": "data", "name": "prod",
        "uid": "uid-TidemarkCluster-prod"}
    assert (made["related"]["kind"], made["related"]["name"]) == ("Pod", "prod-1")
    assert "series" not in made
    writer.tell(item(), E.INVALID_SPEC, "x" * 5_000)
    await rest(writer, clock)
    assert max(len(each["note"]) for each in server.made.values()) == 1_024


def test_only_events_on_the_list_are_told(writer: EventWriter) -> None:
    with pytest.raises(ValueError, match="not on the list"):
        writer.tell(item("LogGroup", "orders"), E.NODE_JOINED)


async def test_the_same_again_is_one_event_with_a_count(writer: EventWriter, server: Server, clock: Clock) -> None:
    act = item("Reconfiguration", "swap")
    for _ in range(500):
        writer.tell(act, E.MOVE_COMPLETED, "moves")
        await rest(writer, clock, 0.01)
    await rest(writer, clock)
    assert server.counts() == [500]
    assert server.requests <= 5, "so many in five seconds"
    await rest(writer, clock, events.SERIES_S - 70)
    writer.tell(act, E.MOVE_COMPLETED, "moves", times=3)
    await rest(writer, clock)
    assert server.counts() == [503]
    await rest(writer, clock, events.SERIES_S + 1)
    writer.tell(act, E.MOVE_COMPLETED, "moves", times=3)
    await rest(writer, clock)
    assert server.counts() == [503, 3], "long after, it is another series"


async def test_another_note_or_pod_is_another_event(writer: EventWriter, server: Server, clock: Clock) -> None:
    for note in ("prod-1 is away", "prod-2 is away"):
        for related in (None, POD):
            writer.tell(item(), E.NODE_UNREACHABLE, note, related=related)
    await rest(writer, clock)
    assert server.counts() == [1, 1, 1, 1]


async def test_who_talks_too_much_is_cut_short(writer: EventWriter, server: Server, clock: Clock) -> None:
    for number in range(1_000):
        labels = {"tidemark.dev/log-group": "orders"}
        writer.tell(item("Shard", f"orders-{number:04}", labels=labels), E.LEADER_ELECTED, "a")
    assert len(writer._series) == events.TOLD_BURST, "the shards of a group share a budget"
    writer.tell(item("Shard", "other-0000", labels={"tidemark.dev/log-group": "other"}), E.LEADER_ELECTED, "a")
    await rest(writer, clock)
    assert len(server.made) == events.TOLD_BURST + 1
    clock.at += 60
    for number in range(1_000, 2_000):
        writer.tell(item("Shard", f"orders-{number:04}", labels=labels), E.LEADER_ELECTED, "a")
    assert len(writer._series) <= 2 * events.TOLD_BURST + 1


async def test_memory_is_bounded_and_requests_are_paced(writer: EventWriter, server: Server, clock: Clock) -> None:
    for number in range(3 * events.SERIES_MAX):
        writer.tell(item("LogGroup", f"g{number}"), E.SHARDS_CREATED, "4")
    assert len(writer._series) == len(writer._budgets) == events.SERIES_MAX
    await rest(writer, clock, 10)
    assert server.requests <= events.WRITES_BURST + 10 * events.WRITES_PER_S + 1
    await rest(writer, clock, 200)
    assert len(server.made) == events.SERIES_MAX


async def test_what_an_api_server_that_is_away_misses_is_told_later(
    writer: EventWriter, server: Server, clock: Clock
) -> None:
    server.trouble = [KubeAway("away"), KubeAway("away")]
    writer.tell(item(), E.NODE_JOINED, "a")
    assert await writer._write_due() == events.RETRY_S
    assert not server.made
    await rest(writer, clock)
    assert server.counts() == [1]


async def test_a_lost_answer_makes_no_second_event(writer: EventWriter, server: Server, clock: Clock) -> None:
    server.trouble, server.after = [KubeAway("away")], True
    writer.tell(item(), E.NODE_JOINED, "a")
    await rest(writer, clock)
    assert server.counts() == [1]
    writer.tell(item(), E.NODE_JOINED, "a")
    await rest(writer, clock)
    assert server.counts() == [2]


async def test_an_event_that_expired_is_made_anew(writer: EventWriter, server: Server, clock: Clock) -> None:
    writer.tell(item(), E.NODE_JOINED, "a")
    await rest(writer, clock)
    (name,) = server.made
    server.made.clear()
    writer.tell(item(), E.NODE_JOINED, "a")
    await rest(writer, clock)
    assert server.counts() == [2]
    assert name not in server.made


async def test_what_is_refused_is_dropped(
    writer: EventWriter, server: Server, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        server.trouble = [KubeRefused(403, "Forbidden", "no")]
        writer.tell(item(), E.NODE_JOINED, f"{number}")
        await rest(writer, clock)
    assert not server.made
    assert server.requests == 3
    assert len(caplog.records) == 1, "it is said once"


async def test_it_writes_as_a_task_and_at_rest_does_nothing(server: Server) -> None:
    writer = EventWriter(server)  # type: ignore[arg-type]
    task = asyncio.ensure_future(writer.run())
    async with asyncio.timeout(5):
        for number in range(3):
            writer.tell(item(), E.NODE_JOINED, f"{number}")
            while len(server.made) <= number:
                await asyncio.sleep(0)
    before = server.requests
    for _ in range(100):
        await asyncio.sleep(0)
    assert server.requests == before == 3
    task.cancel()
