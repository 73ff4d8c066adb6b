"""Figures: what a benchmark found, whether it met its target, and how a spread of samples is told in short.

Stays out: measuring, and writing files (`report`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number; `target` is None where nothing was promised.  `basis` says what it is measured against."""

    what: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False     # the target is an upper bound
    basis: str = ""

    @property
    def met(self) -> bool | None:
        """None when there is no target."""
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target

    @property
    def target_text(self) -> str:
        if self.target is None:
            return "reported"
        return f"{'<=' if self.at_most else '>='} {number(self.target)} {self.unit}"

    @property
    def verdict(self) -> str:
        return {None: "-", True: "met", False: "NOT MET"}[self.met]


@dataclass(slots=True)
class Outcome:
    """All that one benchmark found.  `configuration` is enough to repeat it; `samples` are the raw numbers."""

    name: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)   # preformatted text: histograms, tables of parts
    samples: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    absent: str = ""          # why nothing could be measured, when that is nobody's fault
    failure: str = ""         # why it could not run

    def add(
        self, what: str, value: float, unit: str, *, target: float | None = None, at_most: bool = False,
        basis: str = "",
    ) -> None:
        self.figures.append(Figure(what, value, unit, target, at_most, basis))

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        told["figures"] = [asdict(figure) | {"met": figure.met} for figure in self.figures]
        return told

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Outcome:
        figures = [Figure(**{key: value for key, value in f.items() if key != "met"}) for f in told["figures"]]
        return cls(**(told | {"figures": figures}))


def number(value: float) -> str:
    """Return a number with about three digits that matter, thousands apart."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the smallest sample that at least `percent` of all samples do not exceed (nearest rank)."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Return count, mean, p50, p90, p99 and max."""
    return {
        "count": len(samples), "mean": statistics.fmean(samples), "p50": percentile(samples, 50),
        "p90": percentile(samples, 90), "p99": percentile(samples, 99), "max": max(samples),
    }


def histogram(samples: Sequence[float], edges: Sequence[float], unit: str, width: int = 50) -> str:
    """Return one bar per bucket; a bucket holds what is above the edge before it and at most its own edge."""
    counts = [0] * (len(edges) + 1)
    for sample in samples:
        counts[next((at for at, edge in enumerate(edges) if sample <= edge), len(edges))] += 1
    first = next((at for at, count in enumerate(counts) if count), 0)
    last = max((at for at, count in enumerate(counts) if count), default=0)
    labels = [f"<= {number(edge)} {unit}" for edge in edges] + [f"> {number(edges[-1])} {unit}"]
    most = max(counts) or 1
    return "\n".join(
        f"{labels[at]:>14} {counts[at]:>5} {'#' * -(-counts[at] * width // most)}" for at in range(first, last + 1)
    )
