"""Connecting: the cluster that a query reads, found on the driver, and a client of it where rows are read.

The client is imported when it is needed (P1).
Stays out: what else is asked of it (the readers and tasks of a mode).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from .options import InvalidOption, Options, Tls
from .schema import Mode

if TYPE_CHECKING:
    from tidemark import TlsSettings
    from tidemark.routing import Group
    from tidemark.sync import SyncClient

CONNECT_S = 10.0
"""Seconds until a cluster that does not answer is an error."""

PATIENCE_S = 120.0
"""Seconds without any progress after which a task fails: longer than an election."""

AT_ONCE = 16
"""Shards that are asked about at the same time."""

T = TypeVar("T")

KINDS = {Mode.LOG: "Log", Mode.DOCUMENTS: "Documents", Mode.CHANGES: "Documents"}
"""Kinds of groups, by the mode that reads them."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Addresses and certificate paths, as tasks get them: files of profiles are the driver's alone."""

    addresses: tuple[str, ...]
    tls: Tls

    @classmethod
    def of(cls, options: Options) -> Cluster:
        """Return the cluster of a query: of endpoints, else of the profile, else of the environment.

        Raises InvalidOption.
        """
        from tidemark.errors import InvalidArgument
        from tidemark.profiles import resolved

        if options.endpoints:
            return cls(options.endpoints, options.tls)
        try:
            addresses, found = resolved(None, options.profile, None)
        except InvalidArgument as error:
            name = "endpoints" if error.field == "addresses" else error.field
            raise InvalidOption(name, error.message.removeprefix(f"{error.field}: ")) from None
        if found is not None and not options.tls.ca:
            tls = Tls(str(found.ca), str(found.cert), str(found.key), found.server_name)
        else:
            tls = options.tls
        return cls((addresses,) if isinstance(addresses, str) else tuple(addresses), tls)

    def connect(self) -> SyncClient:
        """Return a client.  Raises Unavailable, InvalidArgument of the client."""
        from tidemark import sync

        return sync.connect(list(self.addresses), timeout_s=CONNECT_S, tls=self._tls())

    def _tls(self) -> TlsSettings | None:
        from tidemark import TlsSettings

        tls = self.tls
        return TlsSettings(tls.ca, tls.cert, tls.key, tls.server_name) if tls.ca else None


class Connection:
    """A client that is connected when it is asked first and stays so until `close`; a stream asks again and again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client: SyncClient | None = None
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; a later question connects again."""
        threads, self._threads = self._threads, None
        client, self._client = self._client, None
        if threads is not None:
            threads.shutdown(cancel_futures=True)
        if client is not None:
            client.close()

    def connected(self) -> SyncClient:
        """Return the client.  Raises Unavailable, InvalidArgument of the client."""
        if self._client is None:
            self._client = self._cluster.connect()
        return self._client

    def each(self, shards: Iterable[int], ask: Callable[[int], T]) -> dict[int, T]:
        """Ask about shards side by side; return the answers by shard."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(AT_ONCE, "tidemark-facts")
        asked = list(shards)
        return dict(zip(asked, self._threads.map(ask, asked), strict=True))


def group_of(client: SyncClient, group: str, mode: Mode) -> Group:
    """Return what the cluster says of the group now.

    Raises InvalidOption for a group that is not there or is read in another mode.
    """
    from tidemark.errors import UnknownGroup

    try:
        found = client.group(group)
    except UnknownGroup as error:
        raise InvalidOption("group", error.message) from None
    if found.kind != KINDS[mode]:
        other = next((mode for mode, kind in KINDS.items() if kind == found.kind), None)
        advice = f": read it with mode={other}" if other else ""
        raise InvalidOption("group", f"{group!r} is of kind {found.kind}{advice}")
    return found
