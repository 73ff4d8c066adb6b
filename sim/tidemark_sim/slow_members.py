"""The last part of some runs: nothing is broken, one member is far slower than the others.

Readers must find it and go around it, so that they no longer wait for it; where their application is slower still,
nobody may be blamed (that is judged by `checkers.delivered`).
Stays out: what being slow means (core's `delivery.slowness`); slow members in the midst of other troubles (`delivery`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark_core.delivery.reader import ReaderSettings
from tidemark_core.delivery.slowness import room_for
from tidemark_core.replication.settings import RetentionSettings

from .trace import Violation

if TYPE_CHECKING:
    from .delivery import Client
    from .world import World

CHANCE = 0.5
APP_CHANCE = 0.3
SLOW_MS = 600                # of a look, and again of every shipment on its way
ITEM_MS = 150                # of an application that is the slow one
EVERY_MS = 130
FOUND_MS = 20_000
BUSY_MS = 6_000
PATIENT = ReaderSettings(scd_timeout_ms=60_000, silent_timeout_ms=60_000, all_send_all_timeout_ms=60_000,
                         started_timeout_ms=60_000, window_bytes=8_000)


def watch(world: World) -> None:
    """Slow one member down while a reader tails, unless the dice say otherwise."""
    clients = world.readings.clients
    if not clients or world.options.retention != RetentionSettings() or not world.dice.chance(CHANCE):
        return                                                 # where all is trimmed at once, nobody waits for records
    client = world.dice.pick(clients)
    members = client.reader.ensemble
    if not room_for(len(members), ()):
        return
    slow = world.dice.pick(members)
    world.options.network.delay_ms_max = min(world.options.network.delay_ms_max, 5)
    world.options.disk.read_ms_max = min(world.options.disk.read_ms_max, 3)
    client.local = False
    client.begin(0, PATIENT)
    world.readings.slow_ms[slow] = SLOW_MS
    if world.dice.chance(APP_CHANCE):
        _application_is_slower(world)
    else:
        _gone_around(world, client, slow)
    world.readings.slow_ms.clear()


def _application_is_slower(world: World) -> None:
    world.trace.count("slow_applications")
    options, before = world.options.reading, world.options.reading.item_ms
    options.item_ms = ITEM_MS
    deadline = world.now_ms + BUSY_MS
    while world.now_ms < deadline:
        _append(world)
        world.run_until(world.now_ms + EVERY_MS)
    options.item_ms = before


def _gone_around(world: World, client: Client, slow: str) -> None:
    world.trace.count("slow_members")
    options = world.options.reading
    options.item_ms = 0
    deadline = world.now_ms + FOUND_MS
    while slow not in client.found_slow:
        if world.now_ms >= deadline:
            raise Violation("S slow", f"{client.name} waits for {slow} for {FOUND_MS} ms and does not find it slow")
        _append(world)
        world.run_until(world.now_ms + EVERY_MS)
    if client.found_slow != {slow}:
        raise Violation("S slow", f"{client.name} finds {sorted(client.found_slow)} slow, it is {slow}")
    world.run_until(world.now_ms + 2 * SLOW_MS)                # for what was under way
    for _ in range(8):
        _append(world)
        world.run_until(world.now_ms + SLOW_MS // 2)
        behind = world.readings.stands_behind(client)
        if behind:
            raise Violation("S slow", f"{behind}, and still waits for {slow}")


def _append(world: World) -> None:
    producer = world.dice.pick(world.producers)
    if not producer.outstanding:
        producer.append()
