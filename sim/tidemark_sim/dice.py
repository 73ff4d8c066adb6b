"""The only source of chance: everything is derived from `random.Random.random`, whose values are promised stable.

Stays out: any other draw of the `random` module, whose algorithms may change between versions of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """A seeded stream of choices."""

    __slots__ = ("draw",)

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed).random  # noqa: S311 (a simulator wants dice that repeat)

    def chance(self, probability: float) -> bool:
        """Say yes with this probability; draws nothing when the answer is certain."""
        if probability <= 0.0:
            return False
        return probability >= 1.0 or self.draw() < probability

    def between(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return low + int(self.draw() * (high - low + 1)) if high > low else low

    def uniform(self, low: float, high: float) -> float:
        return low + self.draw() * (high - low)

    def around(self, mean: int) -> int:
        """Return a waiting time of this mean: mostly short, sometimes five times as long; at least 1."""
        spread = self.draw()
        return 1 + int(mean * 5 * spread * spread * spread * spread)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.draw() * len(choices))]

    def weighted(self, choices: Sequence[tuple[T, float]]) -> T | None:
        """Return a choice by weight, or None when all weights are 0."""
        total = sum(weight for _, weight in choices)
        if total <= 0.0:
            return None
        at = self.draw() * total
        for choice, weight in choices:
            at -= weight
            if at < 0.0:
                return choice
        return choices[-1][0]

    def shuffled(self, choices: Sequence[T]) -> list[T]:
        rest = list(choices)
        return [rest.pop(int(self.draw() * len(rest))) for _ in range(len(rest))]

    def bytes(self, count: int) -> bytes:
        return bytes(int(self.draw() * 256) for _ in range(count))
