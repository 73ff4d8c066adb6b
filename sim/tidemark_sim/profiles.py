"""What a run looks like: options, and the profiles they are drawn from.

A profile is data: for each option the chance that a run has it at all and the range its value is drawn from.
So every run disables some kinds of faults and skews the others (swarm testing).
Stays out: what an option does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tidemark_core.base.ids import OperatorId
from tidemark_core.base.limits import Limits
from tidemark_core.planes import PlaneTable, planes
from tidemark_core.replication.records import CoordinatorSettings
from tidemark_core.replication.settings import CopySettings, RetentionSettings

from .admin import AdminOptions
from .clients import ClientOptions
from .crowd import CrowdOptions
from .delivery import ReadingOptions
from .dice import Dice
from .document_clients import DocumentOptions
from .faults import FaultOptions
from .impostor import ImpostorOptions
from .metadata import MetadataOptions
from .network import NetworkOptions
from .node import DiskOptions
from .shard_map import SynchroOptions
from .successors import SuccessorOptions


@dataclass(slots=True)
class ClusterOptions:
    """Size of the world and what its shells do; times are milliseconds."""

    nodes: int = 4
    wide: float = 0.0               # chance of five members instead of three
    shards: int = 1
    operators: int = 1
    all_active: float = 0.5         # chance that every operator is active
    probe_ms: int = 40
    probes_missed_max: int = 2
    probe_lost: float = 0.0
    operator_crash_in_step: float = 0.0
    chunk_bytes_max: int = 1000
    hints: float = 0.0              # chance that a broken link is noticed
    notice_ms_max: int = 30
    mark_entries: int = 1024
    copies: float = 0.0             # chance that fewer than all members keep payloads, where there is such a chance
    tight: float = 0.5              # chance of small limits, so that windows fill and tails are read from disk
    ages: float = 0.0               # chance that logs are kept by age alone
    reports: float = 0.0            # chance that nodes say whom they reach, where there is such a chance
    crawl: float = 0.0              # chance that every entry is pushed alone, once the one before is acknowledged
    before_rounds: float = 0.0      # chance per node that its release knows no rounds of a read index


@dataclass(slots=True)
class Options:
    """Everything drawn for one run."""

    profile: str
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    disk: DiskOptions = field(default_factory=DiskOptions)
    metadata: MetadataOptions = field(default_factory=MetadataOptions)
    clients: ClientOptions = field(default_factory=ClientOptions)
    admin: AdminOptions = field(default_factory=AdminOptions)
    faults: FaultOptions = field(default_factory=FaultOptions)
    synchro: SynchroOptions = field(default_factory=SynchroOptions)
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    successors: SuccessorOptions = field(default_factory=SuccessorOptions)
    impostor: ImpostorOptions = field(default_factory=ImpostorOptions)
    documents: DocumentOptions = field(default_factory=DocumentOptions)
    crowd: CrowdOptions = field(default_factory=CrowdOptions)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    copies: CopySettings = field(default_factory=CopySettings)
    payload_copies: int = 0
    limits: Limits = field(default_factory=Limits)
    planes: Callable[[Limits], PlaneTable] = planes
    coordinator: CoordinatorSettings = field(default_factory=lambda: CoordinatorSettings(OperatorId("")))
    replicas: int = 3


READ_INDEX_MS = 400
"""So long a caller waits for a round."""

RETENTION = 0.35
"""Chance that groups keep a short log."""

Range = tuple[float, float, float]
"""Chance to have it at all, lowest and highest value."""

BASE: dict[str, dict[str, Range]] = {
    "cluster": {
        "nodes": (1, 3, 7), "wide": (1, 0.3, 0.3), "shards": (0.2, 2, 2), "operators": (0.6, 2, 2),
        "probe_ms": (1, 15, 60), "probes_missed_max": (1, 1, 3), "probe_lost": (0.2, 0.002, 0.02),
        "operator_crash_in_step": (0.3, 0.002, 0.03), "chunk_bytes_max": (1, 200, 4000), "hints": (0.5, 0.3, 1),
        "mark_entries": (0.7, 3, 12),
    },
    "network": {
        "delay_ms_max": (1, 1, 12), "loss": (0.5, 0.002, 0.08), "repeat": (0.5, 0.002, 0.1),
        "straggle": (0.4, 0.002, 0.03), "fifo": (0.4, 1, 1),
    },
    "disk": {"sync_ms_max": (1, 1, 8), "crash_in_step": (0.3, 0.0003, 0.003)},
    "metadata": {
        "delay_ms_max": (1, 1, 10), "request_lost": (0.3, 0.01, 0.15), "answer_lost": (0.3, 0.01, 0.15),
        "late": (0.3, 0.01, 0.1), "watch_delay_ms": (1, 1, 60),
    },
    "clients": {
        "producers": (1, 1, 4), "think_ms": (1, 5, 40), "local": (0.6, 0.05, 0.6), "twice": (0.6, 0.01, 0.2),
        "old_again": (0.6, 0.01, 0.1), "records_max": (1, 1, 4), "reads": (0.6, 0.02, 0.2),
        "commit": (0.5, 0.05, 0.4), "ask": (0.6, 0.01, 0.15),
    },
    "synchro": {"delay_ms_max": (1, 1, 150), "lost": (0.3, 0.05, 0.5)},
    "admin": {
        "every_ms": (1, 150, 800), "swap": (0.6, 0.2, 1), "expand": (0.4, 0.2, 1), "contract": (0.4, 0.2, 1),
        "transfer": (0.5, 0.2, 1), "cancel": (0.3, 0.1, 0.5), "trim": (0.5, 0.5, 2),
    },
    "faults": {
        "every_ms": (1, 50, 250), "down_ms": (1, 60, 400), "crash": (0.7, 0.3, 2), "crash_leader": (0.5, 0.3, 2),
        "cut_one_way": (0.5, 0.3, 2), "cut_pair": (0.5, 0.3, 1), "isolate": (0.5, 0.3, 1.5), "cut_peers": (0.2, 0.2, 1),
        "lag": (0.4, 0.3, 1.5),
        "slow_link": (0.4, 0.2, 1), "slow_disk": (0.4, 0.2, 1), "sync_error": (0.3, 0.1, 0.5),
        "wipe": (0.35, 0.1, 0.6), "disk_full": (0.3, 0.1, 0.5), "corrupt": (0.3, 0.3, 1.5),
        "clock_jump": (0.3, 0.2, 1), "operator_crash": (0.5, 0.3, 1.5), "operator_cut": (0.4, 0.2, 1),
        "store_down": (0.3, 0.2, 1), "lease": (0.3, 0.2, 1), "power_cut": (0.2, 0.05, 0.3),
        "ambush": (0.4, 0.1, 0.6),
    },
    "reading": {"readers": (0, 0, 0)},
    "successors": {},
    "impostor": {},
    "documents": {},
    "crowd": {},
}

PROFILES: dict[str, dict[str, dict[str, Range]]] = {
    "swarm": {"clients": {"subscribers": (0.5, 1, 2)}},
    "replication": {
        "cluster": {"nodes": (1, 3, 5), "wide": (1, 0.4, 0.4)},
        "clients": {"think_ms": (1, 4, 25)},
        "admin": {
            "every_ms": (1, 400, 1500), "swap": (0.2, 0.2, 1), "expand": (0, 0, 0), "contract": (0, 0, 0),
            "transfer": (0.6, 0.5, 1),
        },
        "faults": {
            "every_ms": (1, 40, 150), "crash": (0.8, 0.5, 2), "crash_leader": (0.8, 0.5, 2),
            "isolate": (0.7, 0.5, 2), "wipe": (0.1, 0.1, 0.3), "corrupt": (0.1, 0.1, 0.3),
            "disk_full": (0.1, 0.1, 0.3),
        },
    },
    "reconfiguration": {
        "cluster": {
            "nodes": (1, 4, 7), "operators": (0.4, 2, 2), "operator_crash_in_step": (0.4, 0.005, 0.03),
            "chunk_bytes_max": (1, 150, 1200),
        },
        "clients": {"think_ms": (1, 10, 80), "producers": (1, 1, 3)},
        "admin": {
            "every_ms": (1, 30, 120), "swap": (0.8, 0.5, 1), "expand": (0.7, 0.3, 1), "contract": (0.7, 0.3, 1),
            "transfer": (0.4, 0.1, 0.5), "cancel": (0.3, 0.1, 0.4), "trim": (0.3, 0.2, 1),
        },
        "faults": {
            "every_ms": (1, 200, 800), "crash_leader": (0.8, 0.5, 2), "isolate": (0.7, 0.5, 2),
            "cut_peers": (0.4, 0.3, 1), "lag": (0.8, 1, 4), "operator_crash": (0.9, 0.3, 1.5),
            "ambush": (0.9, 0.2, 0.8), "wipe": (0.3, 0.1, 0.5),
        },
    },
    "disks": {
        "cluster": {"nodes": (1, 3, 6)},
        "disk": {"sync_ms_max": (1, 4, 25), "crash_in_step": (0.7, 0.001, 0.005)},
        "admin": {"every_ms": (1, 200, 900), "trim": (0.6, 0.5, 2)},
        "faults": {
            "crash": (1, 1, 2), "crash_leader": (0.8, 0.5, 2), "power_cut": (0.6, 0.2, 1), "slow_disk": (0.6, 0.3, 1.5),
            "sync_error": (0.7, 0.3, 1.5), "wipe": (0.9, 0.5, 2), "disk_full": (0.5, 0.2, 1),
            "corrupt": (0.7, 0.5, 3),
        },
    },
    "operators": {
        "cluster": {
            "operators": (1, 2, 2), "operator_crash_in_step": (0.8, 0.01, 0.12), "probe_lost": (0.6, 0.01, 0.08),
            "all_active": (1, 0.8, 0.8),
        },
        "metadata": {
            "request_lost": (0.6, 0.02, 0.25), "answer_lost": (0.7, 0.02, 0.25), "late": (0.6, 0.02, 0.2),
            "watch_delay_ms": (1, 1, 150),
        },
        "admin": {"every_ms": (1, 80, 400), "swap": (0.8, 0.3, 1), "cancel": (0.5, 0.2, 0.8)},
        "faults": {
            "operator_crash": (0.9, 0.5, 2), "operator_cut": (0.9, 0.5, 2), "store_down": (0.7, 0.3, 1.5),
            "lease": (0.5, 0.3, 1), "ambush": (0.8, 0.2, 0.8),
        },
    },
    "divergence": {
        "cluster": {"nodes": (1, 3, 5), "wide": (1, 0.3, 0.3), "probe_ms": (1, 10, 30), "operators": (0.2, 2, 2)},
        "network": {"straggle": (0.6, 0.01, 0.1), "repeat": (0.6, 0.02, 0.2)},
        "clients": {"think_ms": (1, 10, 40), "local": (0.8, 0.2, 0.8)},
        "admin": {
            "every_ms": (1, 500, 2000), "swap": (0.2, 0.2, 1), "expand": (0, 0, 0), "contract": (0, 0, 0),
            "transfer": (0.4, 0.5, 1), "trim": (0.2, 0.5, 1),
        },
        "faults": {
            "every_ms": (1, 30, 90), "down_ms": (1, 40, 150), "crash": (0.5, 0.3, 1), "crash_leader": (1, 1.5, 4),
            "cut_peers": (1, 1, 4), "cut_one_way": (0.3, 0.2, 1), "cut_pair": (0.3, 0.2, 1), "isolate": (0.5, 0.3, 1),
            "wipe": (0.1, 0.1, 0.3), "disk_full": (0, 0, 0), "corrupt": (0.1, 0.1, 0.3),
        },
    },
    "swaps": {
        "cluster": {
            "nodes": (1, 4, 5), "wide": (1, 0, 0), "shards": (0, 0, 0), "operators": (0.3, 2, 2),
            "operator_crash_in_step": (0.3, 0.005, 0.02), "chunk_bytes_max": (1, 150, 800),
        },
        "clients": {"think_ms": (1, 4, 25), "producers": (1, 1, 3), "local": (0.3, 0.1, 0.5)},
        "admin": {
            "every_ms": (1, 10, 50), "swap": (1, 1, 1), "expand": (0, 0, 0), "contract": (0, 0, 0),
            "transfer": (0.3, 0.05, 0.2), "cancel": (0.2, 0.02, 0.1), "trim": (0.2, 0.1, 0.3),
        },
        "faults": {
            "every_ms": (1, 100, 500), "crash": (0.5, 0.3, 1), "crash_leader": (0.8, 0.5, 2),
            "isolate": (0.5, 0.5, 2), "lag": (1, 2, 6), "operator_crash": (0.8, 0.3, 1.5), "ambush": (1, 0.3, 0.9),
            "wipe": (0.3, 0.1, 0.4), "corrupt": (0.1, 0.1, 0.3), "disk_full": (0.1, 0.1, 0.3),
        },
    },
    "contracts": {
        "cluster": {
            "nodes": (1, 5, 6), "wide": (1, 1, 1), "shards": (0, 0, 0), "operators": (0.3, 2, 2),
            "operator_crash_in_step": (0.3, 0.005, 0.02), "chunk_bytes_max": (1, 1000, 8000),
        },
        "clients": {"think_ms": (1, 10, 60), "producers": (1, 1, 2), "local": (0.3, 0.1, 0.5)},
        "admin": {
            "every_ms": (1, 10, 40), "swap": (0.2, 0.1, 0.2), "expand": (1, 1, 1), "contract": (1, 1, 2),
            "transfer": (0.2, 0.05, 0.2), "cancel": (0.2, 0.02, 0.1), "trim": (0.2, 0.1, 0.3),
        },
        "faults": {
            "every_ms": (1, 60, 300), "crash": (0.5, 0.3, 1), "crash_leader": (0.5, 0.3, 1),
            "isolate": (0.4, 0.3, 1), "lag": (1, 3, 8), "operator_crash": (1, 0.5, 2), "ambush": (1, 0.4, 0.9),
            "wipe": (0.1, 0.1, 0.3), "corrupt": (0.1, 0.1, 0.3), "disk_full": (0.1, 0.1, 0.3),
        },
    },
    "wide": {
        "cluster": {
            "nodes": (1, 5, 7), "wide": (1, 1, 1), "operators": (0.3, 2, 2),
            "operator_crash_in_step": (0.4, 0.005, 0.03),
        },
        "clients": {"think_ms": (1, 15, 300), "producers": (1, 1, 3)},
        "admin": {
            "every_ms": (1, 30, 120), "swap": (0.4, 0.2, 1), "expand": (0.7, 0.5, 1), "contract": (1, 1, 2),
            "transfer": (0.3, 0.1, 0.4), "cancel": (0.2, 0.1, 0.3), "trim": (0.2, 0.2, 1),
        },
        "faults": {
            "every_ms": (1, 150, 600), "crash_leader": (0.8, 0.5, 2), "isolate": (0.7, 0.5, 2),
            "cut_peers": (0.6, 0.5, 2), "lag": (0.8, 1, 4), "operator_crash": (0.9, 0.3, 1.5),
            "ambush": (0.9, 0.2, 0.8),
            "wipe": (0.2, 0.1, 0.4), "corrupt": (0.1, 0.1, 0.3),
        },
    },
    "limbo": {
        "cluster": {
            "nodes": (1, 3, 6), "wide": (1, 0.4, 0.4), "shards": (0.1, 2, 2), "operators": (0.2, 2, 2),
            "probe_ms": (1, 15, 50), "operator_crash_in_step": (0.2, 0.002, 0.02), "chunk_bytes_max": (1, 400, 4000),
        },
        "network": {"straggle": (0.6, 0.01, 0.1), "repeat": (0.6, 0.01, 0.2)},
        "disk": {"sync_ms_max": (1, 1, 8), "crash_in_step": (0.4, 0.0003, 0.002)},
        "clients": {
            "producers": (1, 1, 3), "think_ms": (1, 20, 120), "local": (0.8, 0.1, 0.5), "commit": (0.7, 0.05, 0.4),
            "twice": (0.6, 0.02, 0.2), "old_again": (0.8, 0.02, 0.2), "ask": (1, 0.02, 0.3), "reads": (0.8, 0.05, 0.3),
            "stragglers": (0.8, 0.1, 0.6),
        },
        "admin": {
            "every_ms": (1, 150, 800), "swap": (0.7, 0.3, 1), "expand": (0.4, 0.1, 0.5), "contract": (0.4, 0.1, 0.5),
            "transfer": (0.5, 0.1, 0.5), "cancel": (0.3, 0.1, 0.3), "trim": (0.7, 0.5, 3),
        },
        "faults": {
            "every_ms": (1, 80, 300), "down_ms": (1, 150, 700), "crash": (0.7, 0.3, 1.5),
            "crash_leader": (0.7, 0.3, 1.5), "cut_pair": (0.6, 0.3, 1), "isolate": (0.6, 0.3, 1.5),
            "cut_peers": (0.3, 0.2, 1), "lag": (0.9, 0.5, 3), "slow_link": (0.6, 0.3, 1.5),
            "slow_disk": (0.6, 0.3, 1.5), "stall": (0.9, 1, 4), "ambush_rollback": (0.8, 0.05, 0.4),
            "ambush": (0.4, 0.1, 0.4), "wipe": (0.15, 0.1, 0.3), "disk_full": (0.15, 0.1, 0.3),
            "corrupt": (0.15, 0.1, 0.5),
        },
        "synchro": {
            "timeout_ms_min": (1, 60, 300), "timeout_ms_max": (1, 200, 1500), "formula": (0.95, 0.5, 1),
            "zones": (0.4, 0.2, 0.7), "immediate": (0.15, 1, 1), "change_every_ms": (0.8, 150, 1500),
            "delay_ms_max": (1, 1, 100), "lost": (0.3, 0.05, 0.4),
        },
    },
    "delivery": {
        "cluster": {
            "nodes": (1, 3, 6), "wide": (1, 0.3, 0.3), "shards": (0, 0, 0), "operators": (0.1, 2, 2),
            "operator_crash_in_step": (0.1, 0.002, 0.02), "chunk_bytes_max": (1, 400, 4000),
        },
        "clients": {
            "producers": (1, 1, 3), "think_ms": (1, 10, 60), "local": (0.6, 0.1, 0.4), "commit": (0.5, 0.05, 0.3),
            "reads": (0.2, 0.01, 0.05), "stragglers": (0.5, 0.1, 0.5),
        },
        "admin": {
            "every_ms": (1, 200, 1000), "swap": (0.7, 0.3, 1), "expand": (0.4, 0.1, 0.5), "contract": (0.4, 0.1, 0.5),
            "transfer": (0.4, 0.1, 0.5), "trim": (0.8, 0.5, 3),
        },
        "faults": {
            "every_ms": (1, 100, 400), "down_ms": (1, 100, 600), "crash": (0.8, 0.3, 1.5),
            "crash_leader": (0.6, 0.3, 1.5), "cut_pair": (0.4, 0.3, 1), "isolate": (0.5, 0.3, 1),
            "lag": (0.7, 0.5, 2), "slow_disk": (0.6, 0.3, 1.5), "stall": (0.9, 1, 4), "wipe": (0.3, 0.1, 0.5),
            "corrupt": (0.7, 0.5, 3), "power_cut": (0.2, 0.05, 0.3), "disk_full": (0.1, 0.1, 0.3),
            "ambush": (0.3, 0.1, 0.3), "ambush_rollback": (0.7, 0.05, 0.4), "pause": (0.7, 0.5, 2),
        },
        "synchro": {
            "timeout_ms_min": (1, 40, 150), "timeout_ms_max": (1, 150, 500), "formula": (0.95, 0.5, 1),
            "zones": (0.4, 0.3, 0.8), "change_every_ms": (0.5, 200, 1500), "delay_ms_max": (1, 1, 100),
        },
        "reading": {
            "readers": (1, 1, 3), "window_bytes": (1, 600, 8000), "frame_bytes": (1, 200, 3000),
            "local": (0.4, 0.3, 1), "map_delay_ms": (1, 5, 150), "item_ms": (0.4, 1, 15),
            "trouble_every_ms": (1, 60, 300), "breaks": (0.7, 0.3, 2), "hangs": (0.7, 0.3, 2), "pauses": (0.7, 0.3, 2),
            "slow": (0.5, 0.3, 1), "app_pauses": (0.5, 0.3, 1), "again": (0.6, 0.2, 1), "spoilt": (0.6, 0.002, 0.06),
        },
    },
    "copies": {
        "cluster": {
            "nodes": (1, 4, 7), "shards": (0, 0, 0), "operators": (0.1, 2, 2), "copies": (1, 0.9, 0.9),
            "operator_crash_in_step": (0.2, 0.002, 0.02), "chunk_bytes_max": (1, 200, 2000),
        },
        "clients": {
            "producers": (1, 1, 3), "think_ms": (1, 8, 50), "local": (0.4, 0.1, 0.4), "commit": (0.5, 0.05, 0.3),
            "reads": (0.2, 0.01, 0.05), "stragglers": (0.3, 0.1, 0.5),
        },
        "admin": {
            "every_ms": (1, 40, 300), "swap": (0.8, 0.5, 1), "expand": (0.5, 0.2, 1), "contract": (0.6, 0.3, 1),
            "copies": (0.9, 0.5, 2), "transfer": (0.4, 0.1, 0.5), "cancel": (0.3, 0.1, 0.3), "trim": (0.4, 0.2, 1),
        },
        "faults": {
            "every_ms": (1, 100, 400), "down_ms": (1, 60, 500), "crash": (0.8, 0.3, 1.5),
            "crash_leader": (0.7, 0.3, 1.5), "isolate": (0.5, 0.3, 1), "lag": (0.8, 0.5, 3), "slow_link": (0.4, 0.2, 1),
            "slow_disk": (0.4, 0.2, 1), "stall": (0.3, 0.3, 1), "wipe": (0.5, 0.2, 1), "corrupt": (0.5, 0.3, 1.5),
            "power_cut": (0.2, 0.05, 0.3), "disk_full": (0.1, 0.1, 0.3), "ambush": (0.7, 0.2, 0.8),
            "ambush_rollback": (0.2, 0.05, 0.3), "pause": (0.7, 0.5, 2),
        },
        "synchro": {
            "timeout_ms_min": (1, 100, 1000), "timeout_ms_max": (1, 1000, 3000), "formula": (0.3, 0.3, 1),
            "zones": (0.2, 0.2, 0.7), "delay_ms_max": (1, 1, 100),
        },
        "reading": {
            "readers": (0.7, 1, 2), "window_bytes": (1, 600, 8000), "frame_bytes": (1, 200, 3000),
            "local": (0.3, 0.3, 1), "map_delay_ms": (1, 5, 150), "item_ms": (0.2, 1, 10),
            "trouble_every_ms": (1, 100, 500), "breaks": (0.6, 0.3, 2), "hangs": (0.5, 0.3, 2),
            "pauses": (0.5, 0.3, 2), "slow": (0.3, 0.3, 1), "app_pauses": (0.2, 0.3, 1), "again": (0.8, 0.3, 1),
            "spoilt": (0.3, 0.002, 0.03),
        },
    },
    "recovery": {
        "cluster": {
            "nodes": (1, 3, 6), "wide": (1, 0.3, 0.3), "operators": (0.3, 2, 2), "copies": (0.3, 0.9, 0.9),
            "operator_crash_in_step": (0.5, 0.01, 0.06), "chunk_bytes_max": (1, 150, 1200), "reports": (1, 1, 1),
        },
        "clients": {"think_ms": (1, 5, 40), "producers": (1, 1, 3)},
        "admin": {
            "every_ms": (1, 20, 120), "swap": (0.9, 0.5, 1), "expand": (0.5, 0.2, 1), "contract": (0.5, 0.2, 1),
            "transfer": (0.5, 0.1, 0.5), "cancel": (0.5, 0.1, 0.5), "trim": (0.3, 0.2, 1),
        },
        "faults": {
            "every_ms": (1, 60, 300), "crash": (0.8, 0.3, 1.5), "crash_leader": (0.9, 0.5, 2),
            "isolate": (0.6, 0.5, 2), "lag": (0.8, 1, 4), "wipe": (0.3, 0.1, 0.4), "ambush": (0.8, 0.2, 0.8),
            "operator_crash": (0.6, 0.3, 1.5), "metadata_lost": (1, 1, 4), "delete_replica": (0.4, 0.1, 0.6),
        },
    },
    "clocks": {
        "clients": {
            "producers": (1, 2, 4), "twice": (1, 0.05, 0.3), "old_again": (1, 0.05, 0.2), "subscribers": (1, 1, 3),
        },
        "admin": {"trim": (1, 1, 4)},
        "faults": {"clock_jump": (1, 1, 3), "crash_leader": (0.8, 0.3, 1.5)},
    },
    "ages": {
        "cluster": {"nodes": (1, 3, 5), "shards": (0, 0, 0), "mark_entries": (1, 2, 6), "ages": (1, 0.8, 0.8)},
        "clients": {
            "producers": (1, 2, 4), "think_ms": (1, 20, 120), "twice": (0.5, 0.05, 0.3), "subscribers": (0.3, 1, 2),
        },
        "admin": {
            "every_ms": (1, 300, 1500), "swap": (0.4, 0.2, 1), "expand": (0.2, 0.1, 0.5), "contract": (0.2, 0.1, 0.5),
            "transfer": (0.6, 0.3, 1), "trim": (0, 0, 0),
        },
        "faults": {
            "every_ms": (1, 150, 600), "wrong_clock": (1, 0.5, 0.9), "clock_jump": (0, 0, 0), "crash": (1, 0.5, 2),
            "crash_leader": (1, 1, 3), "wipe": (0.2, 0.1, 0.3), "disk_full": (0.1, 0.1, 0.3),
            "corrupt": (0.1, 0.1, 0.3),
        },
    },
    "successors": {
        "cluster": {
            "nodes": (1, 3, 5), "wide": (1, 0.1, 0.1), "shards": (0, 0, 0), "operators": (0.2, 2, 2),
            "probe_ms": (1, 10, 30), "operator_crash_in_step": (0.1, 0.002, 0.02), "mark_entries": (1, 3, 6),
            "tight": (1, 1, 1), "crawl": (1, 0.6, 0.6), "copies": (0.4, 0.9, 0.9),
        },
        "disk": {"sync_ms_max": (1, 1, 6), "crash_in_step": (0.2, 0.0003, 0.002)},
        "clients": {
            "producers": (1, 2, 4), "think_ms": (1, 5, 25), "local": (0.4, 0.05, 0.3), "subscribers": (1, 1, 2),
            "seeks": (1, 0.1, 0.5),
        },
        "admin": {
            "every_ms": (1, 200, 1000), "swap": (0.3, 0.2, 1), "expand": (0, 0, 0), "contract": (0, 0, 0),
            "transfer": (0.4, 0.2, 1), "trim": (0.8, 0.5, 2),
        },
        "faults": {
            "every_ms": (1, 120, 500), "down_ms": (1, 40, 200), "crash": (0.6, 0.3, 1.5),
            "crash_leader": (0.8, 0.5, 2), "lag": (0.4, 0.3, 1.5), "stall": (0.8, 1, 3), "wipe": (0.15, 0.1, 0.3),
            "disk_full": (0.1, 0.1, 0.3), "corrupt": (0.15, 0.1, 0.5),
        },
        "synchro": {
            "timeout_ms_min": (1, 400, 600), "timeout_ms_max": (1, 600, 1500), "formula": (0.7, 0.5, 1),
            "delay_ms_max": (1, 1, 100),   # timeouts are longer than a crawl through all that writers keep under way
        },
        "successors": {"position": (0.9, 0.3, 1), "opening": (0.9, 0.5, 1), "payload": (0.9, 0.3, 1)},
    },
    "latest": {
        "cluster": {
            "nodes": (1, 3, 6), "wide": (1, 0.3, 0.3), "shards": (0, 0, 0), "probe_ms": (1, 10, 30),
            "copies": (0.2, 0.9, 0.9), "before_rounds": (0.3, 0.2, 0.9),
        },
        "clients": {"think_ms": (1, 5, 40), "latest": (1, 0.3, 1), "local": (0.4, 0.1, 0.5)},
        "admin": {
            "every_ms": (1, 60, 600), "swap": (0.7, 0.3, 1), "expand": (0.5, 0.2, 1), "contract": (0.5, 0.2, 1),
            "transfer": (0.6, 0.3, 1),
        },
        "faults": {
            "every_ms": (1, 60, 250), "down_ms": (1, 60, 300), "crash": (0.5, 0.3, 1.5),
            "crash_leader": (0.7, 0.3, 1.5), "depose": (0.9, 1, 4), "cut_peers": (0.5, 0.3, 2),
            "isolate": (0.5, 0.3, 1), "lag": (0.5, 0.3, 2), "pause": (0.6, 0.5, 2), "ambush": (0.6, 0.2, 0.6),
            "wipe": (0.15, 0.1, 0.3), "corrupt": (0.1, 0.1, 0.3),
        },
    },
    "damage": {
        "cluster": {
            "nodes": (1, 3, 5), "wide": (1, 0.3, 0.3), "shards": (0, 0, 0), "operators": (0.2, 2, 2),
            "probe_ms": (1, 10, 30), "tight": (1, 1, 1), "copies": (0.3, 0.9, 0.9),
            "operator_crash_in_step": (0.1, 0.002, 0.02),
        },
        "disk": {"sync_ms_max": (1, 1, 6), "crash_in_step": (0.2, 0.0003, 0.002)},
        "clients": {"producers": (1, 2, 4), "think_ms": (1, 4, 20), "local": (0.6, 0.2, 0.8)},
        "admin": {
            "every_ms": (1, 300, 1200), "swap": (0.3, 0.2, 1), "expand": (0, 0, 0), "contract": (0, 0, 0),
            "transfer": (0.3, 0.2, 1), "trim": (0.4, 0.5, 2),
        },
        "faults": {
            "every_ms": (1, 30, 100), "down_ms": (1, 60, 250), "crash": (0.5, 0.3, 1), "crash_leader": (0.8, 0.5, 2),
            "power_cut": (0.7, 0.5, 1.5), "isolate": (0.5, 0.3, 1), "cut_peers": (1, 1, 4), "lag": (0.7, 0.5, 3),
            "wipe": (0.1, 0.1, 0.3), "disk_full": (0.1, 0.1, 0.3), "corrupt": (1, 3, 8),
        },
    },
    "space": {
        "cluster": {"nodes": (1, 3, 5), "wide": (1, 0.3, 0.3), "shards": (0, 0, 0), "mark_entries": (1, 2, 5)},
        "clients": {"producers": (1, 2, 4), "think_ms": (1, 5, 40), "subscribers": (0.3, 1, 1)},
        "admin": {
            "every_ms": (1, 200, 1000), "swap": (0.3, 0.2, 1), "expand": (0, 0, 0), "contract": (0, 0, 0),
            "transfer": (0.4, 0.2, 1), "trim": (1, 1, 4),
        },
        "faults": {
            "every_ms": (1, 60, 250), "down_ms": (1, 100, 600), "disk_full": (1, 1, 4), "disks_full": (1, 1, 4),
            "crash": (0.5, 0.2, 1), "crash_leader": (0.5, 0.2, 1), "wipe": (0.1, 0.1, 0.3),
            "corrupt": (0.1, 0.1, 0.3),
        },
        "synchro": {"formula": (0.5, 0.3, 1)},
    },
    "partial": {
        "cluster": {
            "nodes": (1, 3, 6), "wide": (1, 0.5, 0.5), "shards": (0, 0, 0), "operators": (0.2, 2, 2),
            "probe_ms": (1, 10, 30), "hints": (1, 1, 1), "reports": (1, 1, 1), "notice_ms_max": (1, 30, 1500),
            "operator_crash_in_step": (0.1, 0.002, 0.02),
        },
        "clients": {"producers": (1, 1, 3), "think_ms": (1, 10, 60), "local": (0.5, 0.1, 0.5)},
        "admin": {
            "every_ms": (1, 300, 1200), "swap": (0.4, 0.2, 1), "expand": (0.2, 0.1, 0.5), "contract": (0.2, 0.1, 0.5),
            "transfer": (0.5, 0.2, 1), "trim": (0.3, 0.5, 2),
        },
        "faults": {
            "every_ms": (1, 100, 400), "down_ms": (1, 100, 400), "partial": (1, 2, 5), "crash": (0.5, 0.3, 1),
            "crash_leader": (0.5, 0.3, 1), "cut_pair": (0.6, 0.5, 2), "cut_one_way": (0.4, 0.3, 1),
            "operator_cut": (0.4, 0.2, 1), "wipe": (0.2, 0.1, 0.3), "disk_full": (0.1, 0.1, 0.3),
            "corrupt": (0.1, 0.1, 0.3), "ambush": (0.2, 0.1, 0.4),
        },
    },
    "impostor": {
        "cluster": {
            "nodes": (1, 5, 7), "wide": (1, 0.2, 0.2), "shards": (1, 2, 2), "operators": (0.3, 2, 2),
            "copies": (0.3, 0.9, 0.9), "operator_crash_in_step": (0.1, 0.002, 0.02),
        },
        "clients": {"producers": (1, 2, 4), "think_ms": (1, 8, 50), "latest": (0.4, 0.1, 0.5)},
        "admin": {
            "every_ms": (1, 150, 800), "swap": (0.7, 0.3, 1), "expand": (0.4, 0.2, 1), "contract": (0.4, 0.2, 1),
            "transfer": (0.5, 0.2, 1), "trim": (0.5, 0.5, 2),
        },
        "faults": {
            "every_ms": (1, 150, 600), "crash": (0.6, 0.3, 1.5), "crash_leader": (0.6, 0.3, 1.5),
            "isolate": (0.4, 0.3, 1), "lag": (0.5, 0.3, 2), "corrupt": (0.8, 1, 4), "wipe": (0.2, 0.1, 0.3),
            "disk_full": (0.1, 0.1, 0.3),
        },
        "impostor": {"every_ms": (1, 3, 15)},
    },
    "upr": {
        "cluster": {
            "nodes": (1, 3, 5), "wide": (1, 0.2, 0.2), "shards": (0.1, 2, 2), "operators": (0.2, 2, 2),
            "operator_crash_in_step": (0.2, 0.002, 0.02), "chunk_bytes_max": (1, 300, 4000),
        },
        "disk": {"sync_ms_max": (1, 1, 8), "crash_in_step": (0.5, 0.0005, 0.003)},
        "clients": {
            "producers": (1, 1, 4), "think_ms": (1, 5, 40), "local": (0, 0, 0), "commit": (0.5, 0.05, 0.4),
            "twice": (0.7, 0.05, 0.3), "old_again": (0.9, 0.05, 0.3), "reads": (0.2, 0.01, 0.05),
            "stragglers": (0.5, 0.1, 0.5), "subscribers": (0.3, 1, 2),
        },
        "admin": {
            "every_ms": (1, 100, 600), "swap": (0.8, 0.5, 2), "expand": (0.3, 0.1, 0.5), "contract": (0.3, 0.1, 0.5),
            "transfer": (0.5, 0.2, 1), "cancel": (0.2, 0.1, 0.3), "trim": (0.9, 0.5, 3),
        },
        "faults": {
            "every_ms": (1, 60, 300), "down_ms": (1, 60, 400), "crash": (0.9, 0.5, 2), "crash_leader": (0.8, 0.5, 2),
            "lag": (0.6, 0.5, 2), "power_cut": (0.5, 0.1, 0.6), "sync_error": (0.3, 0.1, 0.5),
            "stall": (0.8, 0.5, 3), "ambush_rollback": (0.7, 0.05, 0.4), "wipe": (0.3, 0.1, 0.5),
            "corrupt": (0.3, 0.2, 1), "clock_jump": (0.5, 0.3, 1.5), "disk_full": (0.2, 0.1, 0.4),
        },
        "synchro": {
            "timeout_ms_min": (1, 60, 300), "timeout_ms_max": (1, 200, 1500), "formula": (0.7, 0.3, 1),
            "delay_ms_max": (1, 1, 100),
        },
        "documents": {
            "keys": (1, 2, 24), "deletes": (1, 0.1, 0.5), "conditions": (1, 0.1, 0.8), "atomic": (1, 0.1, 0.6),
            "ttl": (0.8, 0.1, 0.7), "ttl_ms_max": (1, 20, 600), "pin": (0.8, 0.05, 0.5), "pin_ms_max": (1, 100, 2500),
            "reads": (1, 0.1, 0.8), "think_ms": (1, 10, 60),
        },
    },
}

PROFILES["upr_recovery"] = {
    **PROFILES["recovery"],
    "cluster": {**PROFILES["recovery"]["cluster"], "copies": (0, 0, 0)},
    "clients": {**PROFILES["recovery"]["clients"], "local": (0, 0, 0)},
    "documents": PROFILES["upr"]["documents"],
}


PROFILES["losses"] = {
    "cluster": {
        "nodes": (1, 3, 7), "wide": (1, 0.7, 0.7), "shards": (0, 0, 0), "operators": (0.3, 2, 2),
        "operator_crash_in_step": (0.3, 0.005, 0.03), "probe_ms": (1, 10, 30),
    },
    "clients": {"producers": (1, 1, 3), "think_ms": (1, 5, 30), "local": (0.5, 0.05, 0.3)},
    "admin": {
        "every_ms": (1, 20, 100), "swap": (0.4, 0.1, 0.5), "expand": (0.2, 0.1, 0.3), "contract": (0.2, 0.1, 0.3),
        "transfer": (0.4, 0.1, 0.3), "trim": (0.3, 0.1, 0.5), "accept_loss": (1, 1, 4),
    },
    "faults": {
        "every_ms": (1, 60, 250), "down_ms": (1, 60, 400), "lose_disks": (1, 1, 4), "crash": (0.7, 0.3, 1.5),
        "crash_leader": (0.6, 0.3, 1.5), "lag": (0.9, 1, 4), "isolate": (0.5, 0.3, 1), "wipe": (0.3, 0.1, 0.5),
        "operator_crash": (0.6, 0.3, 1.5), "corrupt": (0, 0, 0), "disk_full": (0, 0, 0), "ambush": (0.4, 0.1, 0.5),
    },
}

PROFILES["crowd"] = {
    "cluster": {"nodes": (1, 3, 5), "wide": (1, 0.3, 0.3)},
    "network": {"repeat": (0, 0, 0)},   # the first batch of a producer that was forgotten is a new one
    "clients": {"producers": (1, 1, 4), "think_ms": (1, 10, 120), "twice": (0.7, 0.05, 0.3)},
    "faults": {"crash": (0.8, 0.3, 2), "crash_leader": (0.8, 0.5, 2), "lag": (0.6, 0.5, 2), "clock_jump": (0, 0, 0)},
    "crowd": {"callers": (1, 1, 3), "every_ms": (1, 1, 8), "remembered": (1, 9, 24)},
}
"""At most four producers of other callers: whatever the numbers, one of the crowd has more ids than each of them."""

PROFILES["claims"] = {
    **PROFILES["limbo"],
    "clients": {
        **PROFILES["limbo"]["clients"], "claimed": (1, 0.5, 1), "succeeds": (0.9, 0.01, 0.1), "ask": (0.3, 0.02, 0.1),
    },
}

PROFILES["expecting"] = {
    **PROFILES["limbo"],
    "clients": {
        **PROFILES["limbo"]["clients"], "expects": (1, 0.2, 1), "claimed": (0.3, 0.1, 0.5), "ask": (0.3, 0.02, 0.1),
    },
}

PROFILES["sinks"] = {
    **PROFILES["successors"],
    "clients": {**PROFILES["successors"]["clients"], "sinks": (1, 1, 3), "producers": (1, 1, 2)},
}

SILENCE_MS = (150, 400)
COMPARE_MS = 100


def draw(profile: str, dice: Dice) -> Options:
    """Draw the options of one run."""
    options = Options(profile)
    overrides = PROFILES[profile]
    for section in BASE:
        ranges = BASE[section] | overrides.get(section, {})
        target = getattr(options, section)
        for name, (chance, low, high) in ranges.items():
            if dice.chance(chance):
                setattr(target, name, _value(dice, getattr(target, name), low, high))
            elif isinstance(getattr(target, name), float):
                setattr(target, name, 0.0)
    cluster = options.cluster
    options.replicas = 5 if cluster.nodes - bool(options.impostor.every_ms) >= 5 and dice.chance(cluster.wide) else 3
    tight = dice.chance(cluster.tight)
    options.limits = Limits(
        pending_entries_max=dice.between(8, 40) if tight else 4096,
        push_bytes_max=dice.between(200, 1500) if tight else 1 << 20,
        inflight_bytes_max=dice.between(400, 4000) if tight else 8 << 20,
        tail_bytes_max=dice.between(300, 4000) if tight else 8 << 20,
        resend_ms=dice.between(30, 120),
        commit_notice_ms=dice.between(2, 15),
        transfer_ms=dice.between(80, 400),
        read_index_ms=READ_INDEX_MS,
        pull_retry_ms=dice.between(30, 120),
        checkpoint_entries=dice.between(5, 60),
        retention_look_ms=dice.between(10, 100),
    )
    options.limits = replace(
        options.limits, checkpoint_rows=options.limits.checkpoint_entries % 5 or 1024,
        documents_notice_ms=options.limits.commit_notice_ms,
    )
    if dice.chance(cluster.crawl):
        options.limits = replace(options.limits, push_bytes_max=1, inflight_bytes_max=1)
    options.coordinator = CoordinatorSettings(
        OperatorId(""),
        retry_ms=dice.between(40, 120),
        grace_ms=dice.between(0, 25),
        takeover_ms=dice.between(200, 800),
        change_timeout_ms=dice.between(500, 2500),
    )
    if cluster.reports:
        options.coordinator = replace(options.coordinator, quorum_silence_ms=dice.between(*SILENCE_MS))
    if dice.chance(cluster.ages):
        options.retention = RetentionSettings(age_ms=dice.between(1_000, 4_000))
    elif dice.chance(RETENTION):
        options.retention = RetentionSettings(
            age_ms=dice.between(100, 2000) if dice.chance(0.7) else 0,
            bytes_max=dice.between(300, 8000) if dice.chance(0.7) else 0,
        )
    if options.reading.readers or cluster.copies:
        options.limits = replace(
            options.limits, order_block_bytes=dice.between(1, 400), order_block_ms=dice.between(50, 2_000)
        )
    if cluster.copies:
        _draw_copies(options, dice)
    if options.documents.keys:
        options.limits = replace(
            options.limits, fold_bytes_max=dice.between(1, 3_000), expire_look_ms=dice.between(10, 120),
            tombstone_ms=dice.between(20, 600), compare_ms=COMPARE_MS,
        )
    return options


def _draw_copies(options: Options, dice: Dice) -> None:
    """Three to seven members, of which a majority or more keep each payload."""
    available = options.cluster.nodes - bool(options.impostor.every_ms)
    size = options.replicas = dice.between(3, min(7, available))
    if dice.chance(options.cluster.copies):
        options.payload_copies = dice.between(size // 2 + 1, size - 1)
    options.copies = CopySettings(sync_leaders=dice.between(1, 2), release_ms=dice.between(10, 150))
    options.limits = replace(options.limits, drop_ms=dice.between(10, 120), drop_bytes=dice.between(200, 3_000))


def _value(dice: Dice, current: Any, low: float, high: float) -> Any:
    if isinstance(current, bool):
        return True
    return dice.between(int(low), int(high)) if isinstance(current, int) else dice.uniform(low, high)
