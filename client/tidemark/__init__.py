"""Tidemark's client: append to log groups and read them back, put and get documents, set and get keys.

    client = await tidemark.connect("127.0.0.1:6690")
    async with client, client.appender("orders") as appender:
        place = await appender.append(b"...", key=b"customer-7")
    async for record in client.read("orders"):
        ...
    async with client.documents("settings") as documents:
        await documents.put(b"theme", b"dark", expected=0)
        document = await documents.get(b"theme")
    carts = client.keyspace("carts")
    await carts.set(b"7", b"...")

`tidemark.sync` is the same without an event loop; `tidemark.errors` is what may be caught.
"""

from tidemark_core.base.entry import Durability
from tidemark_core.delivery.location import Location
from tidemark_core.delivery.messages import GapKind
from tidemark_core.delivery.slowness import SlowDetection
from tidemark_core.limbo.view import LimboEntry, LimboView
from tidemark_core.optimistic.stamps import Stamp
from tidemark_core.replication.messages import Fate, Outcome
from tidemark_core.sinks.fold import SinkEnd
from tidemark_core.sinks.view import SinkView
from tidemark_core.subscriptions.view import SubscriptionsView, SubscriptionView
from tidemark_core.upr.messages import Op as ChangeOp
from tidemark_wire.tls import TlsSettings
from tidemark_wire.version import VERSION as __version__

from . import errors, sync
from .appending.appender import Appender
from .appending.pending import AppendedBatch
from .batch import Appended, AppendedRange, ReadBatch, Record
from .change_events import (
    Advanced,
    BarrierResult,
    BatchEvent,
    Change,
    ChangeBatch,
    Discarded,
    Rebuilding,
    Snapshot,
    SnapshotBegin,
    SnapshotEnd,
    Vector,
)
from .change_settings import BEGINNING, NOW
from .changes import Changes
from .client import Client, connect
from .cursor import EARLIEST, LATEST
from .document import ActivePin, BulkWritten, Cut, Delete, Document, HistoryEntry, Put, ShardDocuments, Written
from .document_scans import Scan
from .documents import Documents
from .errors import TidemarkError
from .explain import ExplainedItem, Explanation
from .gaps import Gap
from .keyspace import Keyspace
from .keyspace_cells import CellsPage, RefusedCell
from .keyspace_futures import FutureKey, ReplacedStamp
from .keyspace_pages import KeyspacePages
from .keyspace_results import KeyMember, KeyspaceShape, KeyspaceStats, KeyValue, KeyWritten
from .keyspace_views import (
    KeyAtNode,
    KeyExplanation,
    KeyspaceRanges,
    RangeAtNode,
    RangeBlock,
    RangesOfNode,
    SeenCell,
)
from .loop import run
from .payload import SCHEMA
from .pins import Pin
from .producer import LastBatch, ProducerId, Resumed
from .read_stats import ReadStats
from .reader import Reader
from .sinks import Sinks
from .view import SqliteView, Verification

QUORUM = Durability.QUORUM
COMMIT = Durability.COMMIT
LOCAL = Durability.LOCAL

__all__ = [
    "BEGINNING", "COMMIT", "EARLIEST", "LATEST", "LOCAL", "NOW", "QUORUM", "SCHEMA", "ActivePin", "Advanced",
    "Appended", "AppendedBatch", "AppendedRange", "Appender", "BarrierResult", "BatchEvent", "BulkWritten",
    "CellsPage", "Change", "ChangeBatch", "ChangeOp", "Changes", "Client", "Cut", "Delete", "Discarded", "Document",
    "Documents", "Durability", "ExplainedItem", "Explanation", "Fate", "FutureKey", "Gap", "GapKind", "HistoryEntry",
    "KeyAtNode",
    "KeyExplanation", "KeyMember", "KeyValue", "KeyWritten", "Keyspace", "KeyspacePages", "KeyspaceRanges",
    "KeyspaceShape", "KeyspaceStats", "LastBatch", "LimboEntry", "LimboView", "Location", "Outcome", "Pin",
    "ProducerId", "Put", "RangeAtNode", "RangeBlock", "RangesOfNode", "ReadBatch", "ReadStats", "Reader", "Rebuilding",
    "Record", "RefusedCell", "ReplacedStamp", "Resumed", "Scan", "SeenCell", "ShardDocuments", "SinkEnd",
    "SinkView", "Sinks", "SlowDetection",
    "Snapshot", "SnapshotBegin", "SnapshotEnd", "SqliteView", "Stamp", "SubscriptionView", "SubscriptionsView",
    "TidemarkError", "TlsSettings", "Vector", "Verification", "Written", "__version__", "connect", "errors", "run",
    "sync",
]


def __dir__() -> list[str]:
    return sorted(__all__)
