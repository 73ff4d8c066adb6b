"""What every part of a resource has in common: strict models, rules over several fields, scalars, metadata.

A rule is stated twice, side by side: in CEL for the API server and as a Python predicate for the models, which also
load where there is no API server.  A test runs both over the same objects.
Stays out: the kinds themselves, reading files, writing CRDs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

GROUP = "tidemark.dev"
VERSION = "v1alpha1"
API_VERSION: Final = "tidemark.dev/v1alpha1"


@dataclass(frozen=True, slots=True)
class Rule:
    """A fact about one object.  `field` is the path, below the model that owns the rule, that a message names."""

    cel: str
    message: str
    holds: Callable[[Any], bool]
    field: str = ""


@dataclass(frozen=True, slots=True)
class Transition:
    """A fact about an update: `allows(new, old)`; `oldSelf` in CEL."""

    cel: str
    message: str
    allows: Callable[[Any, Any], bool]
    field: str = ""


def immutable(attribute: str, *, optional: bool = False, hint: str = "") -> Transition:
    """The rule that `attribute` keeps the value it was created with."""
    field = to_camel(attribute)
    cel = f"self.{field} == oldSelf.{field}"
    if optional:
        cel = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {cel})"
    return Transition(
        cel=cel,
        message=f"{field} is immutable" + (f": {hint}" if hint else ""),
        allows=lambda new, old: getattr(new, attribute) == getattr(old, attribute),
        field=field,
    )


class ApiModel(BaseModel):
    """A part of a resource: camelCase outside, snake_case inside, unknown fields and wrong types refused."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        defer_build=True,   # most commands of the CLI never look at a resource
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()
    TRANSITIONS: ClassVar[tuple[Transition, ...]] = ()

    @model_validator(mode="after")
    def _hold_rules(self) -> Self:
        for rule in self.RULES:
            if not rule.holds(self):
                # The message travels as context: PydanticCustomError would expand braces in a template.
                raise PydanticCustomError("rule", "{message}", {"message": rule.message, "field": rule.field})
        return self


# --- scalars

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
QUANTITY_MAX = 32
"""Characters."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_LABEL)]
"""Name of an object, a pool or a node: a DNS label."""

Principal = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=r"^(\*|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)$")
]
"""Name of a client as its certificate says, the last part of `spiffe://CLUSTER/client/NAME`; `*` is every client."""

Zone = Annotated[str, StringConstraints(min_length=1, max_length=63)]
"""Value of the label that names a failure domain."""

LocationLabel = Annotated[str, StringConstraints(max_length=63, pattern=r"^[A-Za-z0-9._-]+$")]
"""Label of one location scope."""

Quantity = Annotated[str, StringConstraints(max_length=QUANTITY_MAX, pattern=QUANTITY)]
"""Bytes with a Kubernetes suffix, see `quantity_bytes`."""



def _check_time(value: str) -> str:
    if not _RFC_3339.fullmatch(value):
        raise PydanticCustomError("time", "must be a time such as 2026-11-20T10:15:00Z")
    return value


_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
Timestamp = Annotated[
    str, Field(max_length=64, json_schema_extra={"format": "date-time"}), AfterValidator(_check_time)
]
"""RFC 3339."""

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
LongCount = Annotated[int, Field(ge=0, le=2**63 - 1)]
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
Network = Annotated[str, StringConstraints(max_length=43, pattern=(
    rf"^({_OCTET}([.]{_OCTET}){{3}}/([12]?[0-9]|3[0-2])|[0-9a-fA-F:]{{2,39}}/([1-9]?[0-9]|1[01][0-9]|12[0-8]))$"))]
"""An IPv4 or IPv6 network in CIDR notation.  Of IPv6 the API server checks the rest."""

LabelValue = Annotated[str, StringConstraints(max_length=63)]
AnnotationValue = Annotated[str, StringConstraints(max_length=4096)]
ConfigValue = Annotated[str, StringConstraints(max_length=1024)]

OpenObject = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
"""An object of another API, handed through unread."""


def _refuse_repeats(values: Sequence[Any]) -> Sequence[Any]:
    seen: set[Any] = set()
    for value in values:
        key = getattr(value, "name", value)
        if key in seen:
            raise PydanticCustomError("repeated", "{value} stands here twice", {"value": repr(key)})
        seen.add(key)
    return values


SET = [Field(json_schema_extra={"x-kubernetes-list-type": "set"}), AfterValidator(_refuse_repeats)]
"""Metadata of a list whose values are distinct."""

BY_NAME = [
    Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    AfterValidator(_refuse_repeats),
]
"""Metadata of a list whose items have distinct names."""

ATOMIC = Field(json_schema_extra={"x-kubernetes-list-type": "atomic"})
"""Metadata of a list that is replaced as a whole."""

_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def quantity_bytes(quantity: str) -> int:
    """Return the bytes that a quantity such as `100Mi` or `1.5G` stands for, rounded down."""
    digits = quantity.rstrip("KMGTki")
    whole, _, fraction = digits.partition(".")
    factor = _UNITS.get(quantity[len(digits) :], 1)
    scale: int = 10 ** len(fraction)
    return (int(whole + fraction) * factor) // scale


# --- parts that several kinds share


class ObjectRef(ApiModel):
    name: Name = Field(description="Name of the object, in the same namespace.")


class ConditionStatus(ApiModel):
    """metav1.Condition."""

    type: Annotated[str, StringConstraints(max_length=316)] = Field(description="What it is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    observed_generation: LongCount | None = Field(
        default=None, description="The .metadata.generation that it is about."
    )
    last_transition_time: Timestamp = Field(description="When the status last changed.")
    reason: Annotated[
        str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ] = Field(description="Why, out of a closed list.")
    message: Annotated[str, StringConstraints(max_length=32768)] = Field(description="The same for people.")


Conditions = Annotated[
    tuple[ConditionStatus, ...],
    Field(
        max_length=32,
        description="metav1.Condition list.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]

ObservedGeneration = Annotated[
    LongCount, Field(description="The .metadata.generation that this status describes.")
]


class ObjectMeta(ApiModel):
    """The metadata that Kubernetes owns; Tidemark reads name, namespace, labels and annotations."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
    namespace: Name = "default"
    labels: dict[str, LabelValue] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] | None = None
    owner_references: tuple[dict[str, Any], ...] | None = None
    managed_fields: tuple[dict[str, Any], ...] | None = None
    generate_name: str | None = None
    self_link: str | None = None


_CONDITION_PATH = re.compile(r'\.status\.conditions\[\?\(@\.type=="(\w+)"\)\]\.(\w+)')


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False

    def of(self, item: Mapping[str, Any]) -> Any:
        """Return what the column shows of an object, an empty text where it has no such field."""
        found: Any = item
        if (condition := _CONDITION_PATH.fullmatch(self.path)) is not None:
            type_, field = condition.groups()
            conditions = (item.get("status") or {}).get("conditions") or ()
            return next((each.get(field, "") for each in conditions if each["type"] == type_), "")
        for name in self.path.lstrip(".").split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return "" if found is None else found


@dataclass(frozen=True, slots=True)
class Names:
    """How a kind is called and shown by the API server."""

    kind: str
    short: str
    columns: tuple[Column, ...]
    selectable_fields: tuple[str, ...] = ()

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def plural(self) -> str:
        return f"{self.singular}s"


def condition_column(name: str, condition: str, field: str = "status", *, wide: bool = False) -> Column:
    """A column that shows one field of one condition."""
    return Column(name, f'.status.conditions[?(@.type=="{condition}")].{field}', wide=wide)


AGE = Column("Age", ".metadata.creationTimestamp", type="date")


class Resource(ApiModel):
    """One object.  Subclasses narrow `kind`, `spec` and `status`."""

    NAMES: ClassVar[Names]

    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: ApiModel
    status: ApiModel | None = None

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def cluster(self) -> str:
        """Return the name of the cluster that the object belongs to."""
        reference: ObjectRef = self.spec.cluster_ref  # type: ignore[attr-defined]
        return reference.name

    def in_namespace(self, namespace: str) -> Self:
        """Return the same object as it would be elsewhere."""
        metadata = self.metadata.model_copy(update={"namespace": namespace})
        return self.model_copy(update={"metadata": metadata})

    def manifest(self) -> dict[str, Any]:
        """The object as plain data, defaults written out, ready for JSON or YAML."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def as_written(self) -> dict[str, Any]:
        """The object as plain data, without what its writer left to the defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)
