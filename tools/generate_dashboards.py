"""Write the Grafana dashboards of the chart from the short description below.

Stays out: what is measured (`tidemark_node.metrics`, `tidemark_operator.kube`), which a test compares with this.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
FOLDER = "charts/tidemark/files/dashboards"
WIDTH, HEIGHT = 8, 7
"""Of a panel, in the grid of Grafana, which is 24 wide."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """A graph over time, or with `now` one number of this moment; `queries` are (expression, legend)."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    now: bool = False


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    variables: Sequence[tuple[str, str]]
    """(name, what Prometheus is asked for its values)"""
    panels: Sequence[Panel]


OF_CLUSTER = '{namespace="$namespace", cluster="$cluster"}'
OF_NODES = '{namespace="$namespace", cluster="$cluster", pod=~"$pod"}'
OF_GROUP = '{namespace="$namespace", group="$group"}'


def _of_documents(name: str) -> str:
    return f'max by (shard) (tidemark_{name}{{namespace="$namespace", shard=~"$id/.*"}})'


def _rate(metric: str, selector: str, by: str = "pod") -> str:
    return f"sum by ({by}) (rate({metric}{selector}[$__rate_interval]))"


def _most(metric: str, selector: str, by: str) -> str:
    """Of what every operator tells alike."""
    return f"max by ({by}) ({metric}{selector})"


def _condition(kind: str, variable: str) -> Panel:
    selector = f'{{kind="{kind}", namespace="$namespace", name="${variable}"}}'
    return Panel("Conditions (1 true, 0 false, -1 unknown)", [
        (_most("tidemark_object_condition", selector, "type"), "{{type}}")])


DASHBOARDS = {
    "cluster": Dashboard(
        "tidemark-cluster", "Tidemark / Cluster",
        [("namespace", "label_values(tidemark_cluster_nodes, namespace)"),
         ("cluster", 'label_values(tidemark_cluster_nodes{namespace="$namespace"}, cluster)'),
         ("pod", 'label_values(tidemark_links{namespace="$namespace", cluster="$cluster"}, pod)')],
        [
            Panel("Nodes wanted", [
                (_most("tidemark_cluster_nodes_desired", OF_CLUSTER, "cluster"), "wanted")], now=True),
            Panel("Nodes by state", [
                (_most("tidemark_cluster_nodes", OF_CLUSTER, "state") + " > 0", "{{state}}")], now=True),
            _condition("TidemarkCluster", "cluster"),
            Panel("Appended", [(_rate("tidemark_append_bytes_total", OF_NODES), "{{pod}}")], "Bps"),
            Panel("Batches by outcome", [(_rate("tidemark_appends_total", OF_NODES, "outcome"), "{{outcome}}")], "ops"),
            Panel("Read", [
                (_rate("tidemark_delivery_bytes_total", OF_NODES), "{{pod}} delivered"),
                (_rate("tidemark_read_bytes_total", OF_NODES), "{{pod}} as leader")], "Bps"),
            Panel("Group commit, 99 of 100", [(
                "histogram_quantile(0.99, sum by (pod, le) "
                f"(rate(tidemark_store_sync_seconds_bucket{OF_NODES}[$__rate_interval])))", "{{pod}}")], "s"),
            Panel("Oldest append that is not confirmed", [
                (f"tidemark_limbo_oldest_age_seconds{OF_NODES}", "{{pod}}")], "s"),
            Panel("Batches not confirmed", [(f"tidemark_limbo_entries{OF_NODES}", "{{pod}}")]),
            Panel("Disk free", [
                (f"tidemark_disk_free_bytes{OF_NODES} / tidemark_disk_total_bytes{OF_NODES}", "{{pod}}")],
                "percentunit"),
            Panel("Store", [(f"sum by (pod, what) (tidemark_store_bytes{OF_NODES})", "{{pod}} {{what}}")], "bytes"),
            Panel("Shards led", [(f"sum by (pod) (tidemark_shard_leading{OF_NODES})", "{{pod}}")]),
            Panel("Snapshots sent and received", [
                (_rate("tidemark_snapshot_sent_bytes_total", OF_NODES), "{{pod}} sent"),
                (_rate("tidemark_snapshot_received_bytes_total", OF_NODES), "{{pod}} received")], "Bps"),
            Panel("Driver: share of a core", [(_rate("tidemark_driver_turn_seconds_total", OF_NODES), "{{pod}}")],
                  "percentunit"),
            Panel("Refused calls", [(_rate("tidemark_refused_calls_total", OF_NODES, "method"), "{{method}}")], "ops"),
            Panel("Budgets of callers, part in use", [
                (f"max by (budget) (tidemark_budget_used{OF_NODES} / tidemark_budget_limit{OF_NODES})", "{{budget}}")],
                  "percentunit"),
            Panel("Requests that wait for a budget", [
                (f"sum by (budget) (tidemark_budget_waiting{OF_NODES})", "{{budget}}")]),
            Panel("Callers refused over their share", [
                (_rate("tidemark_budget_refused_total", OF_NODES, "budget"), "{{budget}}")], "ops"),
        ]),
    "log-groups": Dashboard(
        "tidemark-log-groups", "Tidemark / Log groups",
        [("namespace", "label_values(tidemark_loggroup_shards, namespace)"),
         ("group", 'label_values(tidemark_loggroup_shards{namespace="$namespace"}, group)'),
         ("id", 'label_values(tidemark_loggroup_info{namespace="$namespace", group="$group"}, group_id)')],
        [
            Panel("Shards online", [
                (_most("tidemark_loggroup_shards", OF_GROUP[:-1] + f', state="{state}"}}', "group"), state)
                for state in ("online", "desired")], now=True),
            Panel("Shards by state", [(_most("tidemark_loggroup_shards", OF_GROUP, "state"), "{{state}}")]),
            _condition("LogGroup", "group"),
            Panel("Epochs (a step is an election)", [
                ('max by (shard) (tidemark_shard_epoch{namespace="$namespace", shard=~"$id/.*"})', "{{shard}}")]),
            Panel("Committed", [
                ('sum by (shard) (rate(tidemark_shard_commit{namespace="$namespace", shard=~"$id/.*"}'
                 '[$__rate_interval]) * on (namespace, pod, shard) tidemark_shard_leading)', "{{shard}}")], "ops"),
            Panel("Log kept", [
                ('max by (shard) (tidemark_shard_bytes{namespace="$namespace", shard=~"$id/.*"})', "{{shard}}")],
                "bytes"),
            Panel("Moves that go on", [
                (_most("tidemark_reconfiguration_moves", '{namespace="$namespace"}', "reconfiguration, state"),
                 "{{reconfiguration}} {{state}}")]),
            Panel("Rollbacks and timeouts", [
                (_rate("tidemark_limbo_rollbacks_total", '{namespace="$namespace"}', "namespace"), "rolled back"),
                (_rate("tidemark_limbo_timeouts_total", '{namespace="$namespace"}', "namespace"), "outcome unknown")],
                "ops"),
            Panel("Subscriptions: pinned, overrun", [
                ('sum(tidemark_subscription_pinned_bytes{namespace="$namespace"})', "pinned bytes"),
                ('sum(increase(tidemark_pin_overruns_total{namespace="$namespace"}[$__rate_interval]))', "overruns")]),
            Panel("Documents: live, deleted", [
                (_of_documents("documents"), "{{shard}} live"),
                (_of_documents("document_tombstones"), "{{shard}} deleted")]),
            Panel("Documents: records to fold, pins", [
                (_of_documents("documents_lag_records"), "{{shard}} to fold"),
                (_of_documents("document_pins"), "{{shard}} pins")]),
            Panel("Documents: written by verdict, reads", [
                (_rate("tidemark_document_writes_total", '{namespace="$namespace"}', "verdict"), "{{verdict}}"),
                (_rate("tidemark_document_reads_total", '{namespace="$namespace"}', "method"), "{{method}}")], "ops"),
        ]),
    "operator": Dashboard(
        "tidemark-operator", "Tidemark / Operator", [],
        [
            Panel("Clusters led, by operator", [("sum by (pod) (tidemark_operator_leader)", "{{pod}}")]),
            Panel("Clusters without a leader", [
                ("count(max by (namespace, cluster) (tidemark_operator_leader) == 0) or vector(0)", "clusters")],
                now=True),
            Panel("Keys that wait", [("tidemark_operator_queue_depth", "{{pod}}")]),
            Panel("Passes", [
                (_rate("tidemark_operator_reconcile_total", "", "kind, result"), "{{kind}} {{result}}")], "ops"),
            Panel("Passes, 99 of 100", [(
                "histogram_quantile(0.99, sum by (kind, le) "
                "(rate(tidemark_operator_reconcile_duration_seconds_bucket[$__rate_interval])))", "{{kind}}")], "s"),
            Panel("Requests to the API server", [
                (_rate("tidemark_operator_kube_requests_total", "", "method, code"), "{{method}} {{code}}")], "ops"),
            Panel("Statuses written (at rest: none)", [
                (_rate("tidemark_operator_status_writes_total", "", "kind"), "{{kind}}")], "ops"),
            Panel("Since a watch was heard of", [
                ("time() - max by (pod, kind) (tidemark_operator_watch_last_event_timestamp_seconds)",
                 "{{pod}} {{kind}}")], "s"),
            Panel("Memory", [("process_resident_memory_bytes * on (pod) group by (pod) (tidemark_operator_queue_depth)",
                              "{{pod}}")], "bytes"),
        ]),
}


def dashboard(wanted: Dashboard) -> Json:
    """Return what Grafana imports."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    variables: list[Json] = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]
    for name, query in wanted.variables:
        variables.append({
            "name": name, "type": "query", "datasource": source, "refresh": 2, "sort": 1,
            "query": {"query": query, "refId": name}, "includeAll": name == "pod", "multi": name == "pod",
            "hide": 2 if name == "id" else 0})
    return {
        "uid": wanted.uid, "title": wanted.title, "tags": ["tidemark"], "schemaVersion": 39, "version": 1,
        "editable": True, "refresh": "30s", "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, panel, source) for number, panel in enumerate(wanted.panels)],
    }


def _panel(number: int, panel: Panel, source: Json) -> Json:
    across = 24 // WIDTH
    return {
        "id": number + 1, "title": panel.title, "type": "stat" if panel.now else "timeseries", "datasource": source,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": number % across * WIDTH, "y": number // across * HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": expression, "legendFormat": legend,
             "instant": panel.now, "range": not panel.now}
            for index, (expression, legend) in enumerate(panel.queries)],
    }


def main() -> int:
    """Write every dashboard below the repository, or below another folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=REPOSITORY, help="folder to write below")
    arguments = parser.parse_args()
    for name, wanted in DASHBOARDS.items():
        target = arguments.output / FOLDER / f"{name}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(dashboard(wanted), indent=1) + "\n", encoding="utf-8")
        print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
