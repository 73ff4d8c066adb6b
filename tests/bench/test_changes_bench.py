"""changes: the time of one change is compared between the two sizes, and a put is timed to its change."""

from __future__ import annotations

from bench.document_changes import tell
from bench.figures import Outcome


def passes(count: int, *seconds: float) -> list[dict[str, float]]:
    return [{"changes": count, "seconds": each, "value_bytes": 400 * count, "cpu_seconds": 1.0} for each in seconds]


def test_both_sizes_are_compared_by_the_time_of_one_change() -> None:
    outcome = Outcome("changes", "")
    small = {"passes": passes(1_000, 0.01, 0.02, 0.01), "times_ms": [(1.0, 2.0), (1.0, 4.0), (9.0, 9.0)]}
    tell(outcome, small, {"passes": passes(10_000, 0.2, 0.1, 0.2)})
    figures = {figure.what: (round(figure.value, 6), figure.met) for figure in outcome.figures}
    assert figures["changes read from the beginning"] == (50_000, False)
    assert figures["time of one change among 10,000"] == (2, False)
    assert figures["a put, p50"] == (1, None)
    assert figures["from a put to its change, p50"] == (4, True)
