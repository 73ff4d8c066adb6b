"""Two of three stores are older copies of themselves: the third one says so, is kept, and brings everything back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from tidemark_cli.admin import Admin
from tidemark_core.base.refusals import Reason
from tidemark_wire.status import refusal_from_rpc_error

from tests.waiting import until

from .cluster import Cluster, condition
from .disk import put_back
from .marks import marks_of
from .workload import Workload, check_read_back


@pytest.fixture(scope="module")
def losing(start_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster of a module of its own: nodes and operator log critical lines, as they should."""
    return start_cluster(3)


async def refused_change(cluster: Cluster, operation: str, group: str, **more: object) -> Reason:
    async with Admin(cluster.runtime.admin_address) as admin:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for _step in admin.change(operation, group, 0, **more):  # type: ignore[arg-type]
                pass
    found = refusal_from_rpc_error(error.value)
    assert found is not None
    return found.refused.reason


async def test_k14d_the_member_that_kept_the_end_of_the_log_brings_it_back(losing: Cluster, tmp_path: Path):
    group = await losing.create_group()
    async with await losing.connect() as client:
        async with Workload(client, group) as before:
            await before.more()
        await losing.replicated(group)
        *losers, keeper = await losing.members(group)
        losing.kill(*losing.nodes)
        for name in losers:
            shutil.copytree(losing.node(name).data, tmp_path / name)
        await losing.start(*losing.nodes)
        await losing.ready()
        async with Workload(client, group, name="lost") as lost:
            await lost.more(200)
        await losing.replicated(group)
        losing.kill(*losing.nodes)
    async with marks_of(losing) as marks:
        for name in losers:
            put_back(losing, name, tmp_path / name)
            await marks.forget(name)   # else the operator may notice one of them (D52)
    await losing.start(*losers)

    async def led_by_a_loser() -> bool:
        return await losing.leader(group) in losers

    await until(led_by_a_loser, "a member with a shorter log leads")
    await losing.start(keeper)

    async def suspected() -> str:
        found = [item for item in await losing.objects("LogGroup") if item["metadata"]["name"] == group]
        return condition(found[0], "DataLossSuspected")[2] if found else ""

    await until(suspected, "the group says who holds more than its leader")
    assert keeper in await suspected()
    [found] = [item for item in await losing.objects("LogGroup") if item["metadata"]["name"] == group]
    assert condition(found, "Ready")[:2] == ("False", "DataLossSuspected")
    assert await refused_change(losing, "CONTRACT", group, from_node=keeper, force=True) is Reason.LAST_COPY
    assert await refused_change(losing, "RECOVER", group, from_node=losers[0]) is Reason.WRONG_STATE

    async with Admin(losing.runtime.admin_address) as admin:
        steps = [step async for step in admin.change("RECOVER", group, 0, from_node=keeper)]
    assert (steps[-1].stage, steps[-1].leader) == ("DONE", keeper)

    async def whole() -> bool:
        return len(await losing.members(group)) == 3

    await until(whole, "the shard has its members back")
    await losing.replicated(group)
    assert not await suspected()
    async with await losing.connect() as client:
        async with Workload(client, group, name="later") as later:
            await later.more()
        await check_read_back(client, before, lost, later)
    assert [one for one in losing.bugs() if "CRITICAL" not in one] == []
    assert losing.operator_said("CRITICAL .*data_loss_suspected " + keeper)
    said = Path(losing.node(keeper).log).read_text(encoding="utf-8")
    assert [line for line in said.splitlines() if '"critical"' in line and "truncate_below_commit_refused" in line]
