"""Leaderships after a rollout or a drain: whoever handed them over leads its share again, one at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from operator_views import node, nodes, nothing_lags, shard, world
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.records import ChangeDone, StartTransfer
from tidemark_operator.giving_back import SETTLED_S, GivingBack, fairer
from tidemark_operator.model import Shard
from tidemark_operator.plan import World
from tidemark_operator.tending import REFUSALS_MAX, Tender

NAMES = ("n1", "n2", "n3")


def led(*leaders: str, **known: Any) -> World:
    """Shards on three nodes with these leaders."""
    made = [shard(index, *NAMES, leader=leader) for index, leader in enumerate(leaders)]
    return world(*made, nodes={**nodes(3), **known})


def moved(before: World, one: Shard, to: str) -> World:
    return replace(before, shards={**before.shards, one.shard: replace(one, leader=to)})


UNEVEN = ("n1", "n1", "n2", "n2")
YIELDING = {"n3": node("n3", yielding=True)}


def test_leaderships_go_to_whom_they_are_owed_until_nobody_leads_two_more() -> None:
    here, given = led("n1", "n1", "n1", "n2", "n2", "n2", "n2"), 0
    while (found := fairer(here, {"n3"})) is not None:
        one, to = found
        assert to == "n3" and one.leader in ("n1", "n2")
        here, given = moved(here, one, to), given + 1
    assert (given, here.leaders()) == (2, {"n1": 2, "n2": 3, "n3": 2})


def test_who_holds_no_copy_or_may_not_lead_is_given_nothing() -> None:
    here = world(shard(0, "n1", "n2"), shard(1, "n1", "n2"), nodes=nodes(3))
    assert fairer(here, {"n3"}) is None
    assert fairer(here, {"n2", "n3"}) is not None
    assert fairer(led(*UNEVEN, **YIELDING), {"n3"}) is None
    known = led(*UNEVEN)
    assert fairer(known, {"n3"}, known.shards.keys()) is None, "all were asked in vain"


def test_it_comes_to_an_end_whatever_the_ensembles() -> None:
    dice = random.Random(7)
    for _ in range(200):
        names = [f"n{number}" for number in range(1, dice.randint(2, 7))]
        made = [shard(index, *dice.sample(names, dice.randint(1, len(names)))) for index in range(dice.randint(1, 30))]
        owed = set(dice.sample(names, dice.randint(1, len(names))))
        here, given = world(*made, nodes=nodes(len(names))), 0
        while (found := fairer(here, owed)) is not None:
            here, given = moved(here, *found), given + 1
            assert given <= len(made)
        leaders = here.leaders()
        assert all(
            leaders[one.leader or ""] - leaders[name] < 2
            for one in here.shards.values() for name in one.ensemble if name in owed)


def test_only_those_that_handed_theirs_over_are_given_any() -> None:
    """People may have moved leaderships on purpose."""
    clock = [0.0]
    back = GivingBack(lambda: clock[0])
    assert back.choose(led(*UNEVEN), calm=True) is None
    clock[0] += 10 * SETTLED_S
    assert back.choose(led(*UNEVEN), calm=True) is None


def test_they_are_given_back_when_everything_has_been_calm_for_a_moment() -> None:
    clock = [0.0]
    back = GivingBack(lambda: clock[0])

    def choose(here: World, *, calm: bool = True) -> Any:
        return back.choose(here, calm=calm)

    assert choose(led(*UNEVEN, **YIELDING)) is None
    assert choose(led(*UNEVEN, n3=node("n3", up=False))) is None, "it is restarted"
    assert choose(led(*UNEVEN)) == SETTLED_S
    clock[0] += SETTLED_S - 1
    assert choose(led(*UNEVEN)) == 1
    assert choose(led(*UNEVEN), calm=False) is None, "the next one is restarted"
    clock[0] += 100
    assert choose(led(*UNEVEN)) == SETTLED_S, "from the beginning"
    assert choose(led(*UNEVEN, n2=node("n2", up=False))) is None
    clock[0] += 100
    assert choose(led(*UNEVEN)) == SETTLED_S
    clock[0] += SETTLED_S
    here = led(*UNEVEN)
    one, to = choose(here)
    assert to == "n3"
    here = moved(here, one, to)
    assert choose(here) is None, "2, 1 and 1 is even enough"
    clock[0] += 100
    assert choose(led(*UNEVEN)) is None, "and what happens later is nobody's debt"


class Driver:
    """Notes who is to lead what; answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.answers: list[asyncio.Future[Any]] = []

    async def change(self, _shard: int, make: Callable[[int], StartTransfer]) -> ChangeDone | Refused:
        asked = make(len(self.asked))
        self.asked.append((asked.shard, asked.to_node))
        self.answers.append(asyncio.get_running_loop().create_future())
        answer: ChangeDone | Refused = await self.answers[-1]
        return answer


def tender_that_owes(driver: Driver) -> tuple[Tender, list[float]]:
    clock, pokes = [0.0], list[float]()
    made = Tender(driver, pokes.append, nothing_lags, print)  # type: ignore[arg-type]
    made._giving_back = GivingBack(lambda: clock[0])
    made.look(led("n1", "n1", "n1", "n2", "n2", "n2", **YIELDING), 2, calm=True)
    made.look(led("n1", "n1", "n1", "n2", "n2", "n2"), 2, calm=True)
    assert pokes == [SETTLED_S], "nothing else may happen by then"
    clock[0] += SETTLED_S
    return made, pokes


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_leadership_goes_back_at_a_time() -> None:
    driver = Driver()
    tender, _pokes = tender_that_owes(driver)
    here = led("n1", "n1", "n1", "n2", "n2", "n2")
    for count in (1, 2):
        for _ in range(3):
            tender.look(here, 2, calm=True)
            await settled()
        assert len(driver.asked) == count
        asked, to = driver.asked[-1]
        one = next(each for each in here.shards.values() if each.shard == asked)
        here = moved(here, one, to)
        driver.answers[-1].set_result(ChangeDone(2, one.members, None))
        await settled()
    tender.look(here, 2, calm=True)
    await settled()
    assert len(driver.asked) == 2 and here.leaders() == {"n1": 2, "n2": 2, "n3": 2}
    await tender.close()


async def test_one_that_will_not_go_back_is_left_after_a_while(monkeypatch: Any) -> None:
    monkeypatch.setattr("tidemark_operator.tending.RETRY_FIRST_S", 0.0)
    driver = Driver()
    tender, _pokes = tender_that_owes(driver)
    here = led("n1", "n1", "n1", "n2", "n2", "n2")
    asked = 0
    for _ in range(100):
        tender.look(here, 2, calm=True)
        await settled()
        if len(driver.asked) > asked:
            asked += 1
            driver.answers[-1].set_result(Refused(Reason.ABORTED, "the new leader did not catch up in time"))
            await settled()
    assert asked == 6 * REFUSALS_MAX
    await tender.close()
