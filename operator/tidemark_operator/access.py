"""Who may call the Admin service, by the caller's certificate; without TLS everybody may.

Every client of the cluster may look, the admins of a group may move its shards, the admins of the cluster may do all.
What changes something is audited, and so is what is refused.
Stays out: what the lists mean (wire's `identity`), the calls themselves (`admin`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tidemark_core.base.refusals import Reason, Refused
from tidemark_wire.audit import Audit
from tidemark_wire.budgets import name_of
from tidemark_wire.identity import EVERYBODY, AccessLists, Identity, Kind, Role, may, peer_identity
from tidemark_wire.status import to_rpc_error

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LOOKERS = frozenset({Kind.ADMIN, Kind.CLIENT, Kind.OPERATOR})


Manifest = Mapping[str, Any]


def seen_by(identity: Identity | None, item: Manifest) -> Manifest:
    """Return an object as a caller sees it: a client reads no other client's name in access lists.

    The annotation in which kubectl keeps the last manifest has the lists too, so a client does not see it.
    """
    spec = item.get("spec") or {}
    access = spec.get("access")
    if identity is None or identity.kind is not Kind.CLIENT or not access:
        return item
    known = (identity.name, EVERYBODY)
    lists = {role: [name for name in names or () if name in known] for role, names in access.items()}
    metadata = dict(item["metadata"])
    if annotations := metadata.get("annotations"):
        metadata["annotations"] = {key: value for key, value in annotations.items() if key != LAST_APPLIED}
    return {**item, "metadata": metadata, "spec": {**spec, "access": lists}}


class AdminAccess:
    """Judges callers; `lists` returns a group's access lists."""

    def __init__(self, cluster: str, lists: Callable[[str], AccessLists | None], *, tls: bool) -> None:
        self._cluster = cluster
        self._lists = lists
        self._tls = tls
        self._audit = Audit()

    def who(self, context: Any) -> str:
        """Return the name that a caller's budgets go by."""
        return name_of(peer_identity(context) if self._tls else None, context.peer())

    async def look(self, context: Any, method: str) -> Callable[[Manifest], Manifest]:
        """Let callers in that may look at objects; return what turns an object into what this caller sees."""
        identity = peer_identity(context) if self._tls else None
        await self._judge(context, identity, method, "", self._why_not(identity, LOOKERS))
        return partial(seen_by, identity)

    async def move(self, context: Any, method: str, group: str, about: str) -> None:
        """Let whoever may move the shards of a group in."""
        identity = peer_identity(context) if self._tls else None
        why = self._why_not(identity, LOOKERS)
        if not why and identity is not None and not may(identity, Role.ADMIN, self._lists(group)):
            why = f"{identity} is no admin of log group {group!r}"
        await self._judge(context, identity, method, about, why)
        self._audit.admin(identity, context.peer(), method, about)

    async def administer(self, context: Any, method: str) -> Callable[[str], None]:
        """Let the admins of the cluster in; return what audits the call, once it is known what it is about."""
        identity = peer_identity(context) if self._tls else None
        await self._judge(context, identity, method, "", self._why_not(identity, frozenset({Kind.ADMIN})))
        return partial(self._audit.admin, identity, context.peer(), method)

    def _why_not(self, identity: Identity | None, kinds: frozenset[Kind]) -> str:
        if not self._tls:
            return ""
        if identity is None:
            return "the certificate names no identity of a Tidemark cluster"
        if identity.cluster != self._cluster:
            return f"{identity} is of another cluster than {self._cluster!r}"
        return "" if identity.kind in kinds else f"{identity} is none of those who may: {', '.join(sorted(kinds))}"

    async def _judge(self, context: Any, identity: Identity | None, method: str, about: str, why: str) -> None:
        if why:
            self._audit.refused(identity, context.peer(), method, about, why)
            await context.abort(*to_rpc_error(Refused(Reason.PERMISSION_DENIED, why)))
