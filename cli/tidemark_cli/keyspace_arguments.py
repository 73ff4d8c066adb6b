"""Arguments of `tidemark ks`: keyspace, key, hexadecimal, and the call of a keyspace that they mean.

Stays out: the commands.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import tidemark
import typer
from tidemark import Keyspace

from . import completing, target

T = TypeVar("T")
TIMEOUT_S = 5.0

KeyspaceArgument = Annotated[
    str,
    typer.Argument(metavar="KEYSPACE", autocompletion=completing.keyspaces, help="Name of the keyspace."),
]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
HexOption = Annotated[
    bool, typer.Option("--hex", help="Keys, members, fields and values are hexadecimal, on the command line and in "
                       "lines that are no JSON.")]


def bytes_of(text: str, in_hex: bool, hint: str) -> bytes:
    """Return the bytes that an argument means."""
    if not in_hex:
        return os.fsencode(text)
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not hexadecimal", param_hint=hint) from None


def ask(
    name: str, timeout_s: float, state: Any, cluster: str | None, work: Callable[[Keyspace], Awaitable[T]]
) -> T:
    """Return what `work` returns for a keyspace."""
    async def main() -> T:
        async with await target.connect(state, cluster) as client:
            return await work(client.keyspace(name, timeout_s=timeout_s))

    return tidemark.run(main())
