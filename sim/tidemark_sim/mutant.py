"""A mutant: a few replaced functions for the length of a run.

Stays out: which repairs are removed (`mutants`, `limbo_mutants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tidemark_core.base.effects import Persist, Send

RUNS_MAX = 500


@dataclass(frozen=True, slots=True)
class Mutant:
    """One repair removed."""

    name: str
    missing: str
    change: Callable[[ExitStack], None]
    profile: str | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Remove the repair for the length of the context."""
        with ExitStack() as stack:
            self.change(stack)
            yield


def substitute(stack: ExitStack, target: Any, name: str, value: Any) -> None:
    """Give `target` another `name` until the stack unwinds."""
    original = target.__dict__[name]
    setattr(target, name, value)
    stack.callback(setattr, target, name, original)


def early(effects: list[Any], kinds: tuple[type, ...]) -> list[Any]:
    """Take effects of these message kinds out of the write that they should wait for, and run them first."""
    first: list[Any] = []
    rest: list[Any] = []
    for effect in effects:
        if isinstance(effect, Persist):
            first += [each for each in effect.then if isinstance(each, Send) and isinstance(each.message, kinds)]
            kept = tuple(each for each in effect.then if each not in first)
            rest.append(replace(effect, then=kept))
        else:
            rest.append(effect)
    return [*first, *rest]


