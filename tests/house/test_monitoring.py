"""Alerts and dashboards: every metric and label they name exists, every alert has a runbook and a test of its own."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from tidemark_core.limbo.view import LimboView
from tidemark_node.metrics import Metrics
from tidemark_operator import metrics as operator_metrics
from tidemark_operator.kube import health
from tidemark_operator.kube.object_metrics import ObjectMetrics
from tidemark_operator.resources import KINDS
from tidemark_wire.budgets import Line

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "charts" / "tidemark"
ALERTS = CHART / "files" / "alerts.yaml"
ALERTS_TEST = Path(__file__).with_name("alerts_test.yaml")
RULES = [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
OF_TARGETS = {"namespace", "cluster", "pod", "le"}
"""Labels that scraping adds, or that belong to histograms."""
OF_OTHERS = {"process_resident_memory_bytes"}
"""What every Python process tells."""


def families() -> Iterator[Metric]:
    """All that nodes and operators tell."""
    node = Metrics()
    node.watch_shards(list)
    node.watch_store(dict)
    node.watch_limbo(list[LimboView])
    node.watch_keyspaces(lambda: None, lambda: 0)
    node.watch_subscriptions(list)
    node.watch_budgets([("frame_bytes", Line("bytes of frames", 1))])
    yield from node.registry.collect()
    assert health.ACTIVE
    assert operator_metrics.ELECTIONS
    yield from REGISTRY.collect()
    objects = CollectorRegistry()
    objects.register(ObjectMetrics({kind: [] for kind in KINDS}))
    yield from objects.collect()


KNOWN = {family.name + suffix for family in families() for suffix in SUFFIXES.get(family.type, [""])}


def expressions() -> Iterator[tuple[str, str]]:
    """Where a query stands, and the query."""
    for rule in RULES:
        yield f"alert {rule['alert']}", rule["expr"]
    for path in sorted((CHART / "files" / "dashboards").glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{path.name}: ${variable['name']}", variable["query"]["query"]


def unknown(expression: str) -> set[str]:
    """Return metrics of an expression that nobody tells."""
    return {name for name in re.findall(r"\b(?:tidemark|process)_[a-z_]+", expression) if name not in KNOWN | OF_OTHERS}


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_metric_exists(where: str, expression: str) -> None:
    assert re.search(r"\b(?:tidemark|process)_", expression), f"{where} asks for nothing of ours"
    assert unknown(expression) == set(), where


def test_a_metric_that_does_not_exist_is_seen() -> None:
    assert unknown("sum(rate(tidemark_appends_total[1m])) / tidemark_appends") == {"tidemark_appends"}
    assert unknown("tidemark_store_sync_seconds_bucket") == set()


def test_every_alert_has_a_runbook_and_no_runbook_is_left_over() -> None:
    page = (REPOSITORY / "docs" / "runbooks.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (Tidemark\w+)$", page, re.MULTILINE)
    assert headings == list(dict.fromkeys(rule["alert"] for rule in RULES)), "in the order of the alerts"
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def test_every_alert_says_how_bad_it_is_and_of_what() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        by = re.search(r"\bby \(([a-z, ]+)\)", rule["expr"])
        kept = set(by[1].split(", ")) if by else set()
        told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert told <= kept, f"{rule['alert']} speaks of labels that its expression does not keep: {told - kept}"


def test_every_alert_is_seen_firing_and_not_firing() -> None:
    tests: list[dict[str, Any]] = yaml.safe_load(ALERTS_TEST.read_text(encoding="utf-8"))["tests"]
    asked = [(case["alertname"], bool(case.get("exp_alerts"))) for test in tests for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in RULES}
    assert {name for name, fires in asked if fires} == names
    assert {name for name, fires in asked if not fires} == names


def run(promtool: Path, *arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [promtool, *arguments], cwd=directory, capture_output=True, text=True, timeout=120, check=False)


def test_the_rules_are_well_formed(promtool: Path) -> None:
    finished = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(ALERTS), directory=REPOSITORY)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert f"{len(RULES)} rules found" in finished.stdout


def test_queries_of_dashboards_are_well_formed(promtool: Path, tmp_path: Path) -> None:
    """As recording rules, with something in place of Grafana's variables."""
    queries = [
        re.sub(r"\$\w+", "x", expression.replace("$__rate_interval", "5m"))
        for where, expression in expressions() if "label_values" not in expression and not where.startswith("alert ")]
    assert len(queries) > 30
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), encoding="utf-8")
    finished = run(promtool, "check", "rules", str(file), directory=tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert f"{len(queries)} rules found" in finished.stdout


def test_alerts_fire_when_they_should(promtool: Path) -> None:
    finished = run(promtool, "test", "rules", str(ALERTS_TEST), directory=ALERTS_TEST.parent)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_an_alert_that_does_not_fire_is_seen(promtool: Path, tmp_path: Path) -> None:
    broken = ALERTS.read_text(encoding="utf-8").replace('state="leaderless"} ', 'state="leaderles"} ')
    broken = broken.replace('state="leaderless"}) > 0', 'state="leaderless"}) > 99')
    (tmp_path / "alerts.yaml").write_text(broken, encoding="utf-8")
    text = ALERTS_TEST.read_text(encoding="utf-8").replace("../../charts/tidemark/files/alerts.yaml", "alerts.yaml")
    (tmp_path / "alerts_test.yaml").write_text(text, encoding="utf-8")
    finished = run(promtool, "test", "rules", "alerts_test.yaml", directory=tmp_path)
    assert finished.returncode != 0
    assert "TidemarkShardLeaderless" in finished.stdout + finished.stderr
