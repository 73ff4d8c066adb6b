"""One test over many seeds: a loop, not an id each.

Stays out: what a seed means; the tests make their dice of it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ONLY = "TIDEMARK_TEST_SEED"


def every_seed(count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call the test with `seed=0` up to `count - 1`.  A failure names its seed and how to run that one alone."""
    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        async def many_awaited(**fixtures: Any) -> None:
            for seed in _seeds(count):
                with _named(seed):
                    await test(seed=seed, **fixtures)

        def many(**fixtures: Any) -> None:
            for seed in _seeds(count):
                with _named(seed):
                    test(seed=seed, **fixtures)

        made: Callable[..., Any] = many_awaited if inspect.iscoroutinefunction(test) else many
        made.__name__, made.__qualname__, made.__doc__ = test.__name__, test.__qualname__, test.__doc__
        made.__module__ = test.__module__
        asked = inspect.signature(test, eval_str=False)
        others = [parameter for name, parameter in asked.parameters.items() if name != "seed"]
        made.__signature__ = asked.replace(parameters=others)  # type: ignore[attr-defined]
        return made

    return decorate


def _seeds(count: int) -> Iterator[int]:
    only = os.environ.get(ONLY)
    return iter(range(count) if only is None else [int(only)])


@contextmanager
def _named(seed: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r} ({ONLY}={seed} runs it alone)") from error
