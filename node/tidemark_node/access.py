"""Who may do what on this node: the one place that is asked, by the certificate of whoever calls.

Nodes link with nodes, the operator controls, clients do what access lists of log groups and keyspaces say; without TLS
everybody may do everything.  A call that is turned down is answered PERMISSION_DENIED, counted and audited.
Stays out: certificates (wire's `tls`), what the lists mean (wire's `identity`), where they come from (`routing`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.producer_ids import prefix_of
from tidemark_wire.audit import Audit
from tidemark_wire.channel import NODE_KEY
from tidemark_wire.identity import Identity, Kind, Role, may, peer_identity
from tidemark_wire.status import to_rpc_error

from .methods import LOG_GROUP, Method
from .metrics import Metrics
from .routing import Routing

Handler = Callable[[Any, Any], Awaitable[Any]]


class Caller(NamedTuple):
    """Who makes a call; `identity` is None where there is no TLS."""

    identity: Identity | None
    peer: str

    @property
    def owner(self) -> str:
        """The name under which this caller owns what it makes, empty where there is no TLS (U70b)."""
        return f"{self.identity.kind}/{self.identity.name}" if self.identity is not None else ""

    @property
    def producer_prefix(self) -> bytes:
        """The bytes that ids of this caller's producers begin with, none where there is no TLS (L25b)."""
        return prefix_of(self.owner)


class Access:
    """Judges callers.  `cluster` is the only one whose certificates count; without `tls` nobody is asked."""

    def __init__(self, cluster: str, routing: Routing, metrics: Metrics, *, tls: bool) -> None:
        self._cluster = cluster
        self._routing = routing
        self._metrics = metrics
        self._tls = tls
        self._audit = Audit()

    def caller(self, context: Any) -> Caller:
        """Return who makes a call that was let in."""
        return Caller(peer_identity(context) if self._tls else None, context.peer())

    def guarded(self, method: Method, handler: Handler) -> Handler:
        """Return a handler that serves only the kinds of callers that the method's access rule lets in."""

        async def call(request: Any, context: Any) -> Any:
            if self._tls:
                caller = self.caller(context)
                why = self._why_not(caller.identity, method.callers, context)
                if why:
                    await _abort(context, self.denied(caller, method.name, "", why))
                if method.audited and caller.identity is not None and caller.identity.kind is Kind.ADMIN:
                    self._audit.admin(caller.identity, caller.peer, method.name)
            return await handler(request, context)

        return call

    def authorised(self, method: Method, handler: Handler) -> Handler:
        """Return a handler that serves only callers with one of the method's roles in what is named."""
        if not method.roles:
            return handler
        field, kind = method.subject, method.subject_kind

        async def call(request: Any, context: Any) -> Any:
            refused = self.refusal(self.caller(context), method.name, method.roles, getattr(request, field), kind)
            if refused is not None:
                await _abort(context, refused)
            return await handler(request, context)

        return call

    def refusal(
        self, caller: Caller, method: str, roles: tuple[Role, ...], name: str, kind: str = LOG_GROUP
    ) -> Refused | None:
        """Return the refusal of a caller that has none of these roles in a group or keyspace, None where it has one."""
        identity = caller.identity
        if identity is None and not self._tls:
            return None
        lists = self._routing.access(name, kind)
        if identity is not None and any(may(identity, role, lists) for role in roles):
            return None
        wanted = " or ".join(roles)
        return self.denied(caller, method, name, f"{identity} is no {wanted} of {kind} {name!r}")

    def administers(self, caller: Caller, group: str) -> bool:
        """Say whether a caller is an admin of a group; without TLS every caller is."""
        identity = caller.identity
        if identity is None:
            return not self._tls
        return may(identity, Role.ADMIN, self._routing.access(group))

    def admin_acts(self, caller: Caller, method: str, about: str) -> None:
        """Note in the audit an act that only an admin may do, before it is done."""
        self._audit.admin(caller.identity, caller.peer, method, about)

    def denied(self, caller: Caller, method: str, group: str, why: str) -> Refused:
        """Count and note that a caller is turned down for its identity; return the refusal."""
        self._metrics.refused_calls.labels(method).inc()
        self._audit.refused(caller.identity, caller.peer, method, group, why)
        return Refused(Reason.PERMISSION_DENIED, why)

    def _why_not(self, identity: Identity | None, kinds: frozenset[Kind], context: Any) -> str:
        """Return why a caller is not let in, nothing when it is."""
        if identity is None:
            return "the certificate names no identity of a Tidemark cluster"
        if identity.cluster != self._cluster:
            return f"{identity} is of another cluster than {self._cluster!r}"
        if identity.kind not in kinds:
            return f"{identity} is none of those who may: {', '.join(sorted(kinds))}"
        if identity.kind is Kind.NODE and dict(context.invocation_metadata() or ()).get(NODE_KEY) != identity.name:
            return f"{identity} introduces itself as another node"
        return ""


async def _abort(context: Any, refused: Refused) -> None:
    await context.abort(*to_rpc_error(refused))
