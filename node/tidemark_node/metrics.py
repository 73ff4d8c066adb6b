"""Metrics of one node process and the small HTTP endpoint that Prometheus and kubelets read.

Stays out: deciding anything; whoever counts holds the counters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from tidemark_core.base.plane import STRANGER_REFUSED
from tidemark_core.limbo.view import LimboView
from tidemark_core.optimistic.inspection import Summary
from tidemark_core.subscriptions.view import SubscriptionsView
from tidemark_wire.budgets import Budget, Line

REQUEST_BYTES_MAX = 8 << 10
PATIENCE_SECONDS = 5.0
"""For a request to come, and for its answer to be taken."""

CONNECTIONS_MAX = 32
"""Scrapers and kubelets ask one at a time; each request ends its connection after at most ten seconds.

A connection above this takes the place of the oldest one from the address that holds the most.
"""
QUEUE_MAX = 1024
"""Connections that the kernel keeps for us.  It drops those above, and a probe would wait seconds for its next try."""
_LATENCY_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


@dataclass(slots=True)
class Turns:
    """The counts of the driver in every turn: plain numbers, since a turn takes less than a hundred microseconds."""

    count: int = 0
    events: int = 0
    seconds: float = 0.0
    waiting: int = 0    # events, at the begin of the last turn


class Metrics:
    """Everything a node counts; one registry per process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tidemark_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"tidemark_{name}", text, registry=registry)

        self.turns = Turns()
        registry.register(_Driver(self.turns))
        self.traces = counter("traces", "What the core found worth counting.", "what")
        self.written_bytes = counter("store_written_bytes", "Bytes written to the store.")
        self.syncs = counter("store_syncs", "Group commits.")
        self.sync_seconds = Histogram(
            "tidemark_store_sync_seconds", "Time of one group commit.", buckets=_LATENCY_BUCKETS, registry=registry
        )
        self.store_reloads = counter("store_reloads", "Times the shards were reloaded after a failed write.")
        self.store_reclaims = counter("store_reclaims", "Rewrites of tables to give back what was dropped.")
        self.store_reclaim_seconds = counter("store_reclaim_seconds", "Time of these rewrites.")
        self.disk_free_bytes = gauge("disk_free_bytes", "Free bytes under the data directory.")
        self.disk_total_bytes = gauge("disk_total_bytes", "Size of the file system of the data directory.")
        self.disk_full = gauge("disk_full", "1 while writes are refused for want of space.")
        self.links = gauge("links", "Live links to peers and operators.")
        self.link_drops = counter(
            "link_dropped_messages", "Messages dropped: a full queue of a link, or a peer of an older release.",
        )
        self.link_violations = counter(
            "link_violations", "Frames of peers that were malformed, and messages in them that a newer release wrote.",
        )
        self.refused_calls = counter("refused_calls", "Calls turned down for who made them, by method.", "method")
        self.strangers_refused = counter(
            "strangers_refused",
            "Messages and snapshot pulls left without effect: their sender is no member of the shard.",
        )
        self.appends = counter("appends", "Batches answered, by outcome.", "outcome")
        self.append_bytes = counter("append_bytes", "Payload bytes of batches accepted for appending.")
        self.document_writes = counter("document_writes", "Records written to documents, by verdict.", "verdict")
        self.document_reads = counter("document_reads", "Gets and pages of scans answered.", "method")
        self.keyspace_operations = counter(
            "keyspace_operations", "Operations on keyspaces that ended, each key of a call one.", "method", "outcome")
        self.keyspace_operation_seconds = Histogram(
            "tidemark_keyspace_operation_seconds", "Time of an operation on a keyspace, from its checks to its end.",
            ["method"], buckets=_LATENCY_BUCKETS, registry=registry,
        )
        self.append_pending_bytes = gauge("append_pending_bytes", "Bytes of batches that wait for their answer.")
        self.outcomes = counter("outcomes", "Outcomes asked for, by answer.", "outcome")
        self.outcomes_waiting = gauge("outcomes_waiting", "Callers that wait for an outcome.")
        self.limbo_rollbacks = counter("limbo_rollbacks", "Rollbacks that became final on shards led here.")
        self.limbo_timeouts = counter("limbo_timeouts", "Times appends were told that the outcome is unknown.")
        self.position_commits = counter("position_commits", "Commits of subscriptions answered.")
        self.pin_overruns = counter(
            "pin_overruns", "Times the hard bound on size removed what a subscription had not read, told once a minute."
        )
        self.of_traces = {
            "rolled_back": self.limbo_rollbacks, "quorum_timeout": self.limbo_timeouts,
            "pin_overrun": self.pin_overruns, STRANGER_REFUSED: self.strangers_refused,
        }
        self.read_bytes = counter("read_bytes", "Bytes sent to readers.")
        self.readers = gauge("readers", "Open read streams.")
        self.delivery_streams = gauge("delivery_streams", "Open streams of readers that are served by every member.")
        self.delivery_items = counter("delivery_items", "Entries and holes sent by delivery, by mode.", "mode")
        self.delivery_bytes = counter("delivery_bytes", "Bytes of entries and holes sent by delivery.")
        self.delivery_left_out = counter(
            "delivery_left_out", "Offsets that delivery told readers of without sending them: another member does."
        )
        self.delivery_not_held = counter(
            "delivery_not_held", "Entries this node was asked for by delivery though other members keep their payloads."
        )
        self.change_streams = gauge("change_streams", "Open change streams: one for each shard of a consumer.")
        self.change_rows = counter("change_rows", "Rows sent on change streams.")
        self.change_bytes = counter("change_scan_bytes", "Bytes that change streams read from the store.")
        self.change_stream_ends = counter("change_stream_ends", "Change streams that this node ended.", "reason")
        self.snapshot_sent_bytes = counter("snapshot_sent_bytes", "Bytes of snapshots served.")
        self.snapshot_received_bytes = counter("snapshot_received_bytes", "Bytes of snapshots pulled.")
        self.snapshot_bytes_per_second = gauge(
            "snapshot_bytes_per_second", "Bytes of snapshots that may be served a second, by all pulls together."
        )

    def watch_shards(self, status: Callable[[], Iterable[dict[str, Any]]]) -> None:
        """Report per-shard positions from `status` at every scrape, at no cost in between."""
        self.registry.register(_Shards(status))

    def watch_store(self, sizes: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """Report the bytes that the store takes, by what and where they are, from `sizes` at every scrape."""
        self.registry.register(_Store(sizes))

    def watch_budgets(self, budgets: Iterable[tuple[str, Budget]]) -> None:
        """Report what callers hold of each budget, by its name, at every scrape."""
        self.registry.register(_Budgets(budgets))

    def watch_keyspaces(self, summary: Callable[[], Summary | None], now_ms: Callable[[], int]) -> None:
        """Report repair and hints of all ranges together, from `summary` at every scrape; None: there is none now."""
        self.registry.register(_Keyspaces(summary, now_ms))

    def watch_limbo(self, views: Callable[[], Iterable[LimboView]]) -> None:
        """Report what is appended and not yet confirmed on the shards led here, from `views` at every scrape."""
        self.registry.register(_Limbo(views))


    def watch_subscriptions(self, views: Callable[[], Iterable[SubscriptionsView]]) -> None:
        """Report who pins how much of the shards led here, from `views` at every scrape."""
        self.registry.register(_Subscriptions(views))


class _Subscriptions(Collector):
    def __init__(self, views: Callable[[], Iterable[SubscriptionsView]]) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        live = [[each for each in view.subscriptions if each.expires_in_ms >= 0] for view in self._views()]
        yield GaugeMetricFamily(
            "tidemark_subscriptions", "Subscriptions of the shards led here whose lease runs.", sum(map(len, live))
        )
        yield GaugeMetricFamily(
            "tidemark_subscription_pinned_bytes",
            "Bytes from the lowest position of a subscription to the head, over the shards led here.",
            sum(max((each.bytes_behind for each in shard), default=0) for shard in live),
        )


class _Driver(Collector):
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def collect(self) -> Iterator[Metric]:
        turns = self._turns
        yield CounterMetricFamily("tidemark_driver_turns", "Turns of the driver loop.", turns.count)
        yield CounterMetricFamily(
            "tidemark_driver_turn_seconds", "Time the driver loop spent in turns and behind syncs.", turns.seconds)
        yield CounterMetricFamily("tidemark_driver_events", "Events stepped through the core.", turns.events)
        yield GaugeMetricFamily("tidemark_driver_inbox_events", "Events waiting for a turn.", turns.waiting)


class _Budgets(Collector):
    def __init__(self, budgets: Iterable[tuple[str, Budget]]) -> None:
        self._budgets = budgets

    def collect(self) -> Iterator[Metric]:
        used = GaugeMetricFamily(
            "tidemark_budget_used", "What callers hold of a budget, one large frame above its limit included.",
            labels=["budget"],
        )
        limit = GaugeMetricFamily("tidemark_budget_limit", "What all callers may hold of it.", labels=["budget"])
        waiting = GaugeMetricFamily("tidemark_budget_waiting", "Requests that wait for it.", labels=["budget"])
        refused = CounterMetricFamily(
            "tidemark_budget_refused", "Requests refused: a caller over its share, or the budget used up.",
            labels=["budget"],
        )
        for name, budget in self._budgets:
            beside = budget.beside if isinstance(budget, Line) else 0
            used.add_metric([name], float(budget.used + beside))
            limit.add_metric([name], float(budget.total))
            refused.add_metric([name], float(budget.refused))
            if isinstance(budget, Line):
                waiting.add_metric([name], float(budget.waiting))
        yield from (used, limit, waiting, refused)


class _Keyspaces(Collector):
    def __init__(self, summary: Callable[[], Summary | None], now_ms: Callable[[], int]) -> None:
        self._summary = summary
        self._now_ms = now_ms

    def collect(self) -> Iterator[Metric]:
        found = self._summary() or Summary()
        age_ms = max(0, self._now_ms() - found.oldest_ms) if found.oldest_ms is not None else 0

        def gauge(name: str, text: str, value: float) -> Metric:
            return GaugeMetricFamily(f"tidemark_keyspace_{name}", text, value)

        yield gauge("ranges", "Ranges of keyspaces that this node holds.", found.ranges)
        yield gauge(
            "exchange_oldest_age_seconds",
            "Age of the oldest last complete exchange with all other owners, over the ranges that this node owns.",
            age_ms / 1000)
        yield gauge(
            "ranges_late", "Ranges owned here whose last complete exchange is older than half of the grace.",
            found.late)
        yield gauge(
            "ranges_need_repair", "Ranges of which this node has dropped hints, without a complete exchange since.",
            found.need_repair)
        yield gauge("hints", "Hints that this node keeps for owners.", found.hints)
        yield gauge("hint_bytes", "Bytes of these hints.", found.hint_bytes)
        yield gauge("tree_leaves", "Leaves of the digests of ranges in memory, at most 8 for 1,000 rows.", found.leaves)
        yield gauge("tree_bytes", "Bytes of these digests, bounded by `repair-memory-bytes`.", found.tree_bytes)
        yield CounterMetricFamily(
            "tidemark_keyspace_trees_forgotten",
            "Ranges whose digests this node forgot since its start, because all of them together took too much memory.",
            found.trees_forgotten)


class _Limbo(Collector):
    def __init__(self, views: Callable[[], Iterable[LimboView]]) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        views = list(self._views())

        def gauge(name: str, text: str, value: float) -> Metric:
            return GaugeMetricFamily(f"tidemark_limbo_{name}", text, value)

        yield gauge("entries", "Batches appended and not yet confirmed.", sum(view.length for view in views))
        yield gauge("bytes", "Bytes of batches appended and not yet confirmed.", sum(view.bytes for view in views))
        yield gauge(
            "oldest_age_seconds", "Age of the oldest batch that is not yet confirmed.",
            max((view.oldest_age_ms for view in views), default=0) / 1000,
        )
        yield gauge(
            "confirm_lag_records", "Most offsets between head and confirmed on one shard.",
            max((view.head - view.confirmed for view in views), default=0),
        )


class _Store(Collector):
    def __init__(self, sizes: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        self._sizes = sizes

    def collect(self) -> Iterator[Metric]:
        held = GaugeMetricFamily("tidemark_store_bytes", "Bytes the store takes.", labels=["what", "where"])
        for labels, size in self._sizes().items():
            held.add_metric(labels, float(size))
        yield held


_DOCUMENTS = {
    "count": ("documents", "Live documents of a shard."),
    "tombstones": ("document_tombstones", "Deleted documents of a shard whose rows are still stored here."),
    "applied": ("documents_applied", "Offset up to which the documents of a shard are folded here."),
    "lag": ("documents_lag_records", "Confirmed offsets that are not folded yet."),
    "purged": ("documents_purged", "Offset up to which deleted documents are forgotten; -1 for none."),
    "pins": ("document_pins", "Active pins of a shard."),
}
"""Metrics of shards of documents: the key in their status, the name and the help."""


class _Shards(Collector):
    def __init__(self, status: Callable[[], Iterable[dict[str, Any]]]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        names = {
            "commit": "Commit offset.", "epoch": "Epoch.", "bytes": "Bytes of log, payloads dropped here counted.",
            "released": "Last offset that readers may have.",
            "swept": "Up to this offset every payload that others keep is dropped here; -1 where all keep all.",
        }
        families = {
            key: GaugeMetricFamily(f"tidemark_shard_{key}", text, labels=["shard"]) for key, text in names.items()
        }
        complete = GaugeMetricFamily(
            "tidemark_shard_complete", "Up to this offset enough members have everything; where this node leads.",
            labels=["shard"],
        )
        skews = GaugeMetricFamily(
            "tidemark_clock_skew_seconds",
            "How far the clock of a node is from the median of the members of the shards led here.", labels=["node"],
        )
        skew_ms: dict[str, int] = {}
        leading = GaugeMetricFamily("tidemark_shard_leading", "1 where this node leads.", labels=["shard"])
        documents = {
            key: GaugeMetricFamily(f"tidemark_{name}", text, labels=["shard"])
            for key, (name, text) in _DOCUMENTS.items()
        }
        for view in self._status():
            for key, family in documents.items() if "documents" in view else ():
                value = view["documents"][key]
                family.add_metric([view["shard"]], float(len(value) if key == "pins" else value))
            for key, family in families.items():
                family.add_metric([view["shard"]], float(view[key]))
            leading.add_metric([view["shard"]], 1.0 if "leader" in view else 0.0)
            if "leader" in view:
                complete.add_metric([view["shard"]], float(view["leader"]["complete"]))
                for node, skew in view["leader"]["clock_skews_ms"].items():
                    skew_ms[node] = max(skew, skew_ms.get(node, 0), key=abs)
        yield from families.values()
        yield from documents.values()
        yield complete
        yield leading
        for node, skew in skew_ms.items():
            skews.add_metric([node], skew / 1000)
        yield skews


class MetricsEndpoint:
    """`GET /metrics`, `/livez` and `/readyz` on a port of their own, in the clear; anything else is 404.

    `ready()` says whether the node serves.  Whoever asks a node that shows certificates asks here: a kubelet has none.
    """

    def __init__(self, metrics: Metrics, ready: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._ready = ready
        self._server: asyncio.Server | None = None
        self._connections: dict[str, dict[asyncio.StreamWriter, None]] = {}   # of each address, the oldest first

    async def start(self, host: str, port: int) -> str:
        """Listen and return the address as host:port."""
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=REQUEST_BYTES_MAX, backlog=QUEUE_MAX)
        bound = self._server.sockets[0].getsockname()
        return f"{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._make_room()
        address = str((writer.get_extra_info("peername") or ("",))[0])
        self._connections.setdefault(address, {})[writer] = None
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), timeout=PATIENCE_SECONDS)
            status, kind, body = self._answer(*head.split(b"\r\n", 1)[0].split(b" ")[:2])
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode() + body
            )
            await asyncio.wait_for(writer.drain(), timeout=PATIENCE_SECONDS)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a scraper that went away or does not speak HTTP is owed nothing
        finally:
            self._forget(address, writer)
            writer.close()

    def _make_room(self) -> None:
        """Where all connections are taken, end the oldest one of the address with the most."""
        if sum(map(len, self._connections.values())) < CONNECTIONS_MAX:
            return
        address = max(self._connections, key=lambda known: len(self._connections[known]))
        oldest = next(iter(self._connections[address]))
        self._forget(address, oldest)
        oldest.transport.abort()

    def _forget(self, address: str, writer: asyncio.StreamWriter) -> None:
        held = self._connections.get(address, {})
        held.pop(writer, None)
        if not held:
            self._connections.pop(address, None)

    def _answer(self, verb: bytes = b"", path: bytes = b"") -> tuple[str, str, bytes]:
        match verb, path:
            case b"GET", b"/metrics":
                return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._metrics.registry)
            case b"GET", b"/livez":
                return "200 OK", "text/plain", b"ok\n"
            case b"GET", b"/readyz" if self._ready():
                return "200 OK", "text/plain", b"ok\n"
            case b"GET", b"/readyz":
                return "503 Service Unavailable", "text/plain", b"not serving\n"
        return "404 Not Found", "text/plain", b"only GET /metrics, /livez and /readyz are here\n"
