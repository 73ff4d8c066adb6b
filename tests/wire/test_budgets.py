"""Budgets: shares of callers, turns of those who wait, and nothing lost where a caller goes away."""

from __future__ import annotations

import asyncio

import pytest
from tidemark_core.base.refusals import Reason
from tidemark_wire.budgets import Budget, Grant, Line, Pace, name_of
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
    line = Line("bytes", 160)
    assert line.take("a", 160)
    leaves = asyncio.ensure_future(line.grant("b", 8))
    stays: asyncio.Future[Grant] = asyncio.ensure_future(line.grant("c", 4))
    await settle()
    if granted_first:
        line.give_back("a", 160)    # the grant is on its way when the caller goes
        leaves.cancel()
    else:
        leaves.cancel()
        await settle()
        line.give_back("a", 160)
    grant = await stays
    assert leaves.cancelled() or (await asyncio.gather(leaves, return_exceptions=True))
    assert 4 == line.used
    grant.release()
    assert 0 == line.used == line.waiting


async def test_t12_whoever_needs_less_goes_on_when_the_one_in_front_leaves() -> None:
    line = Line("bytes", 160)
    assert line.take("a", 150)
    large = asyncio.ensure_future(line.grant("b", 9))
    held = await line.grant("c", 2)
    small = asyncio.ensure_future(line.grant("b", 1))
    await settle()
    assert not large.done() and not small.done(), "the requests of one caller are served in order"
    large.cancel()
    (await small).release()
    held.release()
    assert 150 == line.used


async def test_t12_a_large_request_waits_for_no_sum_of_small_ones() -> None:
    line = Line("bytes", 1600)
    for who in ("stuck", "second", "third"):
        assert line.take(who, line.left(who) if line.held(who) else (line.total - line.used) // 2)
    used = line.used
    large = await asyncio.wait_for(line.grant("victim", 500, 500), 1)
    assert large.beside and 500 == large.count == line.beside and used == line.used, "it lies above the budget"
    assert not large.grow(501) and large.grow(400)
    next_one = asyncio.ensure_future(line.grant("other", 700, 700))
    third = asyncio.ensure_future(line.grant("fourth", 600, 600))
    small = await asyncio.wait_for(line.grant("fifth", 10, 10), 1)
    await settle()
    assert not next_one.done() and line.wants_beside, "one at a time"
    assert 500 == line.beside
    large.shrink(400)
    await settle()
    assert 400 == line.beside and not next_one.done()
    large.release()
    large.release()
    assert 700 == (await next_one).count == line.beside and not third.done(), "in turn"
    (await next_one).release()
    (await third).release()
    small.release()
    assert 0 == line.beside and used == line.used and not line.wants_beside


async def test_t12_a_request_above_the_line_is_served_alone_and_others_go_on() -> None:
    line = Line("bytes", 1600)
    whole = await line.grant("a", 4000)
    assert whole.beside and not line.used
    other = await asyncio.wait_for(line.grant("b", 10, 100), 1)
    leaves = asyncio.ensure_future(line.grant("c", 5000))
    stays = asyncio.ensure_future(line.grant("d", 6000))
    await settle()
    whole.release()
    leaves.cancel()     # its grant is on its way
    assert 6000 == (await stays).count == line.beside
    (await stays).release()
    other.release()
    assert 0 == line.beside == line.used == line.waiting


async def test_t12_work_of_all_callers_has_a_piece_in_each_turn_of_the_loop() -> None:
    """Each turn has its piece while some wait, callers take turns, and a caller that goes away costs no turn."""
    pace, turn, done = Pace(), 0, list[tuple[int, str]]()

    def tick() -> None:
        nonlocal turn
        turn += 1
        ticking.append(asyncio.get_running_loop().call_soon(tick))

    async def piece(who: str) -> None:
        await pace.turn(who)
        done.append((turn, who))

    ticking = list[asyncio.Handle]()
    tick()
    pieces = [asyncio.ensure_future(piece(who)) for who in ["greedy"] * 40 + ["other"]]
    await asyncio.sleep(0)
    pieces[30].cancel()
    await asyncio.gather(*pieces, return_exceptions=True)
    turns = [at for at, _ in done]
    assert 40 == len(done) == len(set(turns))
    assert turns[-1] - turns[1] == len(turns) - 2, "no turn is left out"
    assert [who for _, who in done].index("other") <= 2, "it is not behind all of another caller"
    await settle()
    began = turn
    await piece("alone")
    assert began == turn, "nothing waits, so it does not either"
    ticking[-1].cancel()
