"""Budgets: shares of callers, turns of those who wait, and nothing lost where a caller goes away."""

from __future__ import annotations

import asyncio

import pytest
from tidemark_core.base.refusals import Reason
from tidemark_wire.budgets import Budget, Grant, Line, name_of
from tidemark_wire.identity import Identity, Kind


def test_t12_a_caller_is_its_certificate_or_else_its_machine() -> None:
    billing = Identity("prod", Kind.CLIENT, "billing")
    assert "spiffe://prod/client/billing" == name_of(billing, "ipv4:10.0.0.7:4711")
    assert "ipv4:10.0.0.7" == name_of(None, "ipv4:10.0.0.7:4711") == name_of(None, "ipv4:10.0.0.7:4712")
    assert "ipv6:[::1]" == name_of(None, "ipv6:[::1]:4711")


def test_t12_one_caller_gets_half_of_what_the_others_leave() -> None:
    budget = Budget("streams", 64, "--streams-max")
    taken = [sum(budget.take(who) for _ in range(100)) for who in ("greedy", "second", "third")]
    assert [32, 16, 8] == taken and 56 == budget.used
    assert 100 * 3 - 56 == budget.refused
    budget.give_back("greedy", 32)
    assert not budget.held("greedy") and 24 == budget.used
    assert 20 == sum(budget.take("fourth") for _ in range(100)), "half of what is left now"


def test_t12_a_caller_that_holds_nothing_gets_what_is_left() -> None:
    budget = Budget("calls", 2)
    assert budget.take("a") and not budget.take("a") and budget.take("b") and not budget.take("c")


def test_t12_one_thing_of_any_size_fits_where_nothing_is_held() -> None:
    budget = Budget("bytes", 10)
    assert budget.take("a", 1000) and not budget.take("b", 1)
    budget.give_back("a", 1000)
    assert not budget.used


def test_t12_a_refusal_names_the_limit_its_value_and_what_to_do() -> None:
    budget = Budget("streams", 4, "--streams-max")
    assert budget.take("billing", 2)
    refused = budget.refusal("billing")
    assert Reason.OVERLOADED is refused.reason and refused.retry_after_ms > 0
    for fact in ("billing holds 2", "4 streams", "use fewer at once", "raise --streams-max"):
        assert fact in refused.message


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_t12_those_who_wait_take_turns_and_one_caller_s_requests_stay_in_order() -> None:
    line, served = Line("turns", 2), list[str]()

    async def ask(who: str, number: int) -> None:
        async with line.granted(who):
            served.append(f"{who}{number}")
            await settle()

    held = [await line.grant("x"), await line.grant("y")]
    asked = [asyncio.ensure_future(ask("greedy", number)) for number in range(3)]
    await settle()
    asked.append(asyncio.ensure_future(ask("other", 0)))
    await settle()
    assert 4 == line.waiting and not served
    held[0].release()
    await asyncio.gather(*asked)
    assert {"greedy0", "other0"} == set(served[:2]) and ["greedy1", "greedy2"] == served[2:]
    held[1].release()
    assert 0 == line.used == line.waiting


async def test_t12_grants_shrink_with_what_is_left_and_end_in_waiting() -> None:
    line = Line("bytes", 3200)
    grants = [await line.grant("reader", 10, 100)]
    assert 100 == grants[0].count, "where little is held a stream gets what it asks for"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            while True:
                grants.append(await line.grant("reader", 10, 100))
    counts = [grant.count for grant in grants]
    assert counts == sorted(counts, reverse=True) and 10 == counts[-1]
    assert line.total // 2 - 10 < line.used <= line.total // 2
    other = await line.grant("other", 10, 100)
    assert 50 == other.count, "another caller does not wait, and gets more at once"
    waits = asyncio.ensure_future(line.grant("reader", 10, 100))
    await settle()
    assert not waits.done()
    grants.pop().release()
    await settle()
    assert not waits.done(), "its share is smaller while the other holds something"
    other.release()
    grants.append(await waits)
    for grant in grants:
        grant.release()
        grant.release()
    assert 0 == line.used == line.waiting


@pytest.mark.parametrize("granted_first", [False, True])
async def test_t12_a_caller_that_goes_away_while_it_waits_loses_nothing(granted_first: bool) -> None:
    line = Line("bytes", 10)
    whole = await line.grant("a", 10)
    leaves = asyncio.ensure_future(line.grant("b", 8))
    stays: asyncio.Future[Grant] = asyncio.ensure_future(line.grant("c", 4))
    await settle()
    if granted_first:
        whole.release()    # the grant is on its way when the caller goes
        leaves.cancel()
    else:
        leaves.cancel()
        await settle()
        whole.release()
    grant = await stays
    assert leaves.cancelled() or (await asyncio.gather(leaves, return_exceptions=True))
    assert 4 == line.used
    grant.release()
    assert 0 == line.used == line.waiting


async def test_t12_whoever_needs_less_goes_on_when_the_one_in_front_leaves() -> None:
    line = Line("bytes", 10)
    held = await line.grant("b", 4)
    large = asyncio.ensure_future(line.grant("b", 9))
    small = asyncio.ensure_future(line.grant("b", 1))
    await settle()
    assert not small.done(), "the requests of one caller are served in order"
    large.cancel()
    (await small).release()
    held.release()
    assert 0 == line.used
