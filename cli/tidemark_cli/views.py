"""`tidemark shards`, `get`, `apply` and `delete`: what there is, and what there should be.

Stays out: acts on single shards (changes) and the processes of a local cluster (dev).
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import grpc
import tidemark
import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text
from tidemark_operator.resources.conditions import CONDITIONS
from tidemark_operator.resources.kinds import KINDS
from tidemark_wire.v1 import common_pb2

from . import target
from .admin import Admin, kind_of
from .failures import CommandFailed, describe
from .options import DEFAULT_DIR, ClusterOption, DirOption, JsonOption
from .output import emit, is_wide, table

MANIFEST_BYTES_MAX = 1 << 20
DOCUMENTS_APART = "\n---\n"
_MANIFEST = "Give a manifest, YAML or JSON."


# --- shards


def map_document(shard_map: common_pb2.ShardMap, group: str | None) -> dict[str, Any]:
    """Return the shard map as plain data, one group or all."""
    available = {node.node: node.available for node in shard_map.nodes}
    return {
        "version": shard_map.version,
        "cluster": shard_map.cluster,
        "groups": [
            {
                "name": info.name,
                "kind": info.kind,
                "shards": [
                    {
                        "shard": shard.index,
                        "epoch": shard.epoch,
                        "status": shard.status,
                        "leader": shard.leader or None,
                        "ensemble": list(shard.ensemble),
                        "payload_copies": shard.payload_copies or len(shard.ensemble),
                        "unavailable": [node for node in shard.ensemble if not available.get(node, False)],
                        "hash_min": shard.hash_min,
                        "hash_max": shard.hash_max,
                    }
                    for shard in info.shards
                ],
            }
            for info in shard_map.groups
            if group is None or info.name == group
        ],
    }


def members_text(shard: dict[str, Any]) -> str:
    """Return the ensemble as people read it: the leader first with a star, nodes that are away in brackets."""
    nodes = sorted(shard["ensemble"], key=lambda node: node != shard["leader"])
    shown = [f"{node}*" if node == shard["leader"] else node for node in nodes]
    away = set(shard["unavailable"])
    return ", ".join(f"({text})" if node in away else text for node, text in zip(nodes, shown, strict=True))


def shards(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="Only this log group.")] = None,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every shard: its leader (*), its members, those away in brackets, how many keep each payload."""

    async def main() -> dict[str, Any]:
        async with await target.connect(state, cluster) as client:
            if group is not None:
                await client.group(group)
            return map_document(client.shard_map, group)

    document = tidemark.run(main())
    rows = [
        [info["name"], shard["shard"], shard["epoch"], shard["status"], members_text(shard),
         f"{shard['payload_copies']}/{len(shard['ensemble'])}", f"{shard['hash_min']:08x}-{shard['hash_max']:08x}"]
        for info in document["groups"]
        for shard in info["shards"]
    ]
    columns = ["GROUP", "#SHARD", "#EPOCH", "STATUS", "MEMBERS", "PAYLOADS", "KEY HASHES"]
    emit(as_json, document, lambda: table(columns, rows))


# --- objects


def _table(kind: str, items: list[dict[str, Any]]) -> Table:
    view = KINDS[kind].view
    if is_wide():
        shown = {column.name.lower() for column in view}
        view += tuple(column for column in KINDS[kind].names.columns if column.name.lower() not in shown)
    columns = ["NAME", *(("#" if column.type == "integer" else "") + column.name for column in view)]
    return table(columns, [[item["metadata"]["name"], *(column.of(item) for column in view)] for item in items])


def bad_news(kind: str, items: list[dict[str, Any]]) -> list[str]:
    """Return a line for each condition that says what is wrong, as a full disk, or why something stalls."""
    types = {rule.type for rule in CONDITIONS[kind] if rule.abnormal and (rule.optional or rule.type == "Stalled")}
    return [
        f"{item['metadata']['name']}: {each['type']} ({each['reason']}): {each['message']}"
        for item in items for each in (item.get("status") or {}).get("conditions") or ()
        if each["type"] in types and each["status"] == "True"
    ]


def get(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="cluster, loggroup, keyspace, reconfiguration or shard.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Only this object.")] = "",
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show objects with their status."""
    wanted = kind_of(kind)

    async def main() -> list[dict[str, Any]]:
        async with target.admin(state, cluster) as service:
            return await service.get(wanted, name)

    items = tidemark.run(main())
    if name and not items:
        raise CommandFailed(f"there is no {wanted} {name!r}", f"`tidemark get {kind}` lists those there are.")
    document: Any = items[0] if name else {"kind": f"{wanted}List", "items": items}
    emit(as_json, document, lambda: Group(_table(wanted, items), *map(Text, bad_news(wanted, items))))


def read_manifests(file: str) -> str:
    """Return the text of a manifest file, `-` being standard input."""
    name = "standard input" if file == "-" else file
    if file == "-" and sys.stdin is None:
        raise CommandFailed("cannot read standard input: it is closed", _MANIFEST)
    try:
        with open(sys.stdin.fileno() if file == "-" else file, "rb", closefd=file != "-") as stream:
            content = stream.read(MANIFEST_BYTES_MAX + 1)
        if len(content) > MANIFEST_BYTES_MAX:
            raise CommandFailed(f"{name} has more than {MANIFEST_BYTES_MAX >> 10} KiB", "Apply it in parts.")
        return content.decode()
    except OSError as error:
        raise CommandFailed(f"cannot read {file}: {error.strerror}", _MANIFEST) from None
    except UnicodeDecodeError:
        raise CommandFailed(f"{name} is not UTF-8 text", _MANIFEST) from None
    except ValueError:  # a NUL in the path
        raise CommandFailed(f"cannot read {file!r}: that is no path", _MANIFEST) from None


async def _refused(
    service: Admin, texts: list[tuple[str, str]], refused: grpc.aio.AioRpcError
) -> Exception:
    """Return the refusal of several files with the name of the first one that is to blame; nothing was applied."""
    for file, text in texts:
        try:
            await service.apply(text, dry_run=True)
        except grpc.aio.AioRpcError as error:
            failure = describe(error)
            if failure is None or error.code() is grpc.StatusCode.UNAVAILABLE:
                break
            return CommandFailed(
                f"{file}: {failure.message}", f"No file was applied. {failure.advice}".strip(), code=failure.code,
                reason=failure.reason)
    return refused


def apply(
    files: Annotated[list[str], typer.Option("-f", "--file", metavar="FILE|-", help="Manifest; may be repeated.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and change nothing.")] = False,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Apply manifests, the same files that kubectl takes.

    All files are checked before the first object is written: one that is refused leaves everything as it was.
    """
    texts = [(file, read_manifests(file)) for file in files]

    async def main() -> list[str]:
        async with target.admin(state, cluster) as service:
            try:
                return await service.apply(DOCUMENTS_APART.join(text for _, text in texts), dry_run=dry_run)
            except grpc.aio.AioRpcError as refused:
                raise (await _refused(service, texts, refused) if len(texts) > 1 else refused) from None

    applied = tidemark.run(main())
    emit(as_json, {"applied": applied, "dry_run": dry_run}, lambda: "\n".join(applied))


def delete(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="loggroup, keyspace or reconfiguration.")],
    name: Annotated[str, typer.Argument(metavar="NAME")],
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete an object, as its own policy says."""
    wanted = kind_of(kind)

    async def main() -> None:
        async with target.admin(state, cluster) as service:
            await service.delete(wanted, name)

    tidemark.run(main())
    emit(as_json, {"deleted": f"{wanted}/{name}"}, lambda: f"{wanted}/{name} deleted")


def one_line(document: Any) -> str:
    """Return plain data as one line of JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
