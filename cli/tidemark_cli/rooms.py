"""Commands by name, and the module that each is loaded from when it runs.

Loading them all takes seconds of a small machine; help, completion and wrong usage need their names and one line each.
Stays out: what the commands do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer

from .forms import with_forms
from .running import Commands

PLAIN = None
"""Help without markup: what draws it loads for longer than everything else that help needs."""


class Room(NamedTuple):
    """Where a command is: the function or the group of commands `attribute` of `module`; `help` is its first line."""

    module: str
    attribute: str
    help: str


def command_of(name: str, room: Room) -> Any:
    """Load a command, or a group of commands, and return what runs it."""
    found = getattr(import_module(f".{room.module}", __package__), room.attribute)
    if isinstance(found, typer.Typer):
        _add_forms(found)
        found.rich_markup_mode = PLAIN
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=PLAIN)
    alone.command(name)(with_forms(found))
    return typer.main.get_command(alone)


def _add_forms(group: typer.Typer) -> None:
    group.info.cls = Commands
    for command in group.registered_commands:
        if command.callback is not None:
            command.callback = with_forms(command.callback)
    for each in group.registered_groups:
        if each.typer_instance is not None:
            _add_forms(each.typer_instance)


def lazy(rooms: Mapping[str, Room]) -> type[Commands]:
    """Return a group class that loads these commands when they run."""

    class Lazy(Commands):
        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name: str | None
            name, command, rest = super().resolve_command(ctx, args)
            return name, command if name is None or name not in rooms else command_of(name, rooms[name]), rest

    return Lazy


def stub(room: Room) -> Callable[[], None]:
    """Return what stands for a command in the list of all."""

    def command() -> None:
        raise AssertionError("a command is loaded before it runs")

    command.__doc__ = room.help
    return command
