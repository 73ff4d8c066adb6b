"""Figures of benchmarks: percentiles, verdicts, histograms, and that a stored result reads back as it was."""

from __future__ import annotations

import json

import pytest

from bench.figures import Figure, Outcome, histogram, percentile
from bench.report import compact


def test_percentile_is_a_sample_that_enough_samples_do_not_exceed() -> None:
    samples = list(range(1, 101))
    assert percentile(samples, 50) == 50
    assert percentile(samples, 99) == 99
    assert percentile(samples, 100) == 100
    assert percentile([7.0], 1) == 7.0
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


@pytest.mark.parametrize(
    ("figure", "met", "verdict"),
    [
        (Figure("rate", 80.0, "x", 80.0), True, "met"),
        (Figure("rate", 79.9, "x", 80.0), False, "NOT MET"),
        (Figure("time", 3.0, "ms", 3.0, at_most=True), True, "met"),
        (Figure("time", 3.1, "ms", 3.0, at_most=True), False, "NOT MET"),
        (Figure("memory", 1.0, "MiB"), None, "-"),
    ],
)
def test_figure_says_whether_its_target_is_met(figure: Figure, met: bool | None, verdict: str) -> None:
    assert figure.met is met
    assert figure.verdict == verdict


def test_histogram_counts_every_sample_once() -> None:
    lines = histogram([10, 20, 21, 900], (20, 50, 100), "ms").splitlines()
    counts = [int(line.split("ms")[1].split()[0]) for line in lines]
    assert counts == [2, 1, 0, 1]


def test_stored_outcome_reads_back_as_it_was() -> None:
    outcome = Outcome("name", "title", configuration={"nodes": 3}, samples={"ms": [1.5, 2.0]})
    outcome.add("what", 1.0, "ms", target=2.0, at_most=True, basis="same run")
    assert Outcome.from_json(json.loads(compact(outcome.as_json()))) == outcome
