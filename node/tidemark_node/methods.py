"""Methods as data: the name, the shape, the messages and the access rule of each RPC that a part of the node serves.

Each part that serves callers ends with its table, `METHODS`; `rpc` registers tables and knows no method by name.
Stays out: who a caller is and what it may do (`access`), gRPC's server (`rpc`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from google.protobuf.message import Message
from tidemark_wire.identity import Kind, Role

PACKAGE = "tidemark.v1"
PEOPLE = frozenset({Kind.CLIENT, Kind.ADMIN})
EVERY_KIND = frozenset(Kind)
LOG_GROUP, KEYSPACE = "log group", "keyspace"
"""The kinds of things that have access lists, as people call them."""
_FIELDS = {"group": LOG_GROUP, "keyspace": KEYSPACE}
"""By the field with which a request names one."""

REQUEST_BYTES_MAX = 1 << 20
"""Of one request of a client, where its method does not say another bound; batches have that of their log group."""


class InvalidMethod(RuntimeError):
    """A method that must not be served as its table has it; the message names the method and the fact."""


class Shape(Enum):
    """How many messages each side sends."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDI = "bidi"


class Cost(Enum):
    """The part of the node's budgets that a call of a client takes while it lasts."""

    CALL = "call"
    STREAM = "stream"
    WATCH = "watch"      # a stream that says little and lasts long
    SEARCH = "search"    # a call that may look through thousands of entries, and waits for its turn


@dataclass(frozen=True, slots=True)
class Method:
    """One method: `handler` takes the part that serves it, the request and gRPC's context.

    A side without a message type sends raw frames.  Exactly one access rule is given: `kinds` of certificates, or
    `roles`, of which a caller needs one in the log group or keyspace that the request names.
    """

    name: str                                   # "Service.Method", as metrics and the audit have it
    shape: Shape
    handler: Callable[[Any, Any, Any], Awaitable[Any]]
    request: type[Message] | None = None
    response: type[Message] | None = None
    kinds: frozenset[Kind] = frozenset()
    roles: tuple[Role, ...] = ()
    checks_version: bool = True                 # refuses a client that names another wire version
    audited: bool = False                       # the audit names each admin who is let in
    cost: Cost | None = None                    # by default a call or a stream, as the shape says
    request_bytes_max: int = REQUEST_BYTES_MAX

    @property
    def service(self) -> str:
        """The full name of the service."""
        return f"{PACKAGE}.{self.name.partition('.')[0]}"

    @property
    def short_name(self) -> str:
        """The name within the service."""
        return self.name.partition(".")[2]

    @property
    def subject(self) -> str:
        """The field of a request that names the thing whose access lists are asked, empty where none does."""
        fields = self.request.DESCRIPTOR.fields_by_name if self.request is not None else {}
        return next((field for field in _FIELDS if field in fields), "")

    @property
    def subject_kind(self) -> str:
        """The kind of that thing, as people call it."""
        return _FIELDS[self.subject]

    @property
    def cost_of_call(self) -> Cost:
        """The part of the node's budgets that a call takes."""
        return self.cost or (Cost.CALL if self.shape is Shape.UNARY else Cost.STREAM)

    @property
    def callers(self) -> frozenset[Kind]:
        """The kinds of certificates that may call."""
        return PEOPLE if self.roles else self.kinds


class Serving(Protocol):
    """A part of the node that serves methods."""

    METHODS: ClassVar[tuple[Method, ...]]


def table_of(parts: Iterable[Serving]) -> dict[str, tuple[Method, Serving]]:
    """Return every method by its name, with the part that serves it.

    Raises InvalidMethod where two parts contribute a method, or a method lacks a usable access rule.
    """
    table: dict[str, tuple[Method, Serving]] = {}
    for part in parts:
        for method in part.METHODS:
            if method.name in table:
                first = type(table[method.name][1]).__name__
                raise InvalidMethod(f"{method.name} is contributed twice: by {first} and by {type(part).__name__}")
            _check(method)
            table[method.name] = (method, part)
    return table


def _check(method: Method) -> None:
    if not all(method.name.partition(".")):
        raise InvalidMethod(f"{method.name!r} is not of the form Service.Method")
    if bool(method.kinds) is bool(method.roles):
        given = "two access rules, kinds and roles" if method.roles else "no access rule, neither kinds nor roles"
        raise InvalidMethod(f"{method.name} has {given}: give one")
    if method.roles and not method.subject:
        raise InvalidMethod(f"{method.name} asks for roles, and its request has no field 'group' or 'keyspace'")
