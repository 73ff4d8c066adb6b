"""`tidemark debug dump`: what every node says of itself, in one document to attach to a report.

Stays out: reading disks; nodes answer from what they hold in memory.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import grpc
import tidemark
import typer
from rich.json import JSON
from tidemark_core.base.ids import shard_id
from tidemark_wire import channel as wire
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from . import target
from .failures import CommandFailed
from .options import DEFAULT_DIR, ClusterOption, DirOption, JsonOption
from .output import emit
from .views import map_document

DUMP_TIMEOUT_S = 10.0

debug_app = typer.Typer(no_args_is_help=True, help="Look inside a running cluster.")


async def dump_node(
    client: tidemark.Client, address: str, request: node_pb2.DebugDumpRequest, timeout_s: float = DUMP_TIMEOUT_S
) -> dict[str, Any]:
    """Return a node's dump, or why there is none."""
    try:
        stub = node_pb2_grpc.ControlStub(client.channels.to(address))
        answer = await stub.DebugDump(request, timeout=timeout_s, metadata=wire.hello_metadata())
    except grpc.aio.AioRpcError as error:
        return {"error": f"{error.code().name}: {error.details()}"}
    dump: dict[str, Any] = json.loads(answer.json)
    return dump


@debug_app.callback()
def _debug() -> None:
    """Look inside a running cluster."""


@debug_app.command()
def dump(
    node: Annotated[str | None, typer.Option("--node", help="Only this node.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="Only this group's shard; needs --shard.")] = None,
    shard: Annotated[int | None, typer.Option("--shard", min=0, help="Number of the shard; needs --group.")] = None,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state of every node as JSON."""
    if (group is None) != (shard is None):
        raise typer.BadParameter("--group and --shard go together", param_hint="--shard")

    async def main() -> dict[str, Any]:
        async with await target.connect(state, cluster) as client:
            nodes = {info.node: info.address for info in client.shard_map.nodes if node is None or info.node == node}
            if not nodes:
                raise CommandFailed(f"there is no node {node!r}", "`tidemark shards` shows the nodes.")
            request = node_pb2.DebugDumpRequest(all=group is None)
            if group is not None and shard is not None:
                info = await client.group(group)
                request.shard = shard_id(info.group_id, client.routing.check_shard(info, shard))
            dumps = await asyncio.gather(*(dump_node(client, address, request) for address in nodes.values()))
            return {
                "shard_map": map_document(client.shard_map, group),
                "nodes": {name: found for name, found in zip(nodes, dumps, strict=True)},
            }

    document = tidemark.run(main())
    emit(as_json, document, lambda: JSON.from_data(document))
