"""Options of a query: which there are, what they mean, and typed errors for those that are wrong.

No error, `repr` or offset shows the value of an option that a user may keep secret (P21).
Stays out: positions inside a log (offsets), columns (schema), connecting.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .schema import Mode

OPTIONS: Mapping[str, str] = {
    "endpoints": "host:port of nodes, with commas between them; without it, the profile or the environment",
    "profile": "name of a cluster in the client's file of profiles, instead of endpoints",
    "tls.ca": "path of the CA certificates to trust",
    "tls.cert": "path of the client's certificate",
    "tls.key": "path of the key of tls.cert",
    "tls.serverName": "name in the nodes' certificates, where it is not the one that was dialed",
    "group": "the log group to read",
    "keyspace": "the keyspace to read with mode=keyspace, instead of a group",
    "mode": "log (default), documents, changes or keyspace",
    "startingOffsets": "earliest (default of a batch), latest (default of a stream), or offsets by shard as JSON; "
                       "of changes, the position of a pin",
    "startingTimestamp": "milliseconds since 1970, or ISO 8601 with a zone: begin there; wins over startingOffsets",
    "endingOffsets": "latest (default), or offsets by shard as JSON; the first offset not to read",
    "committedBatches": "true ends at the last complete batch of any query, or of the one whose id or writeId is given",
    "failOnDataLoss": "true (default) fails where offsets or deletes are gone; false reads what is left and warns",
    "maxOffsetsPerTrigger": "offsets that one micro-batch takes at most, of all shards in proportion",
    "minOffsetsPerTrigger": "a micro-batch waits until so many offsets are there, for maxTriggerDelay at most",
    "maxTriggerDelay": "such as 30s, 15m (default) or 2h",
    "minPartitions": "divide large shards so that there are at least so many tasks",
    "maxPartitions": "put token ranges of a keyspace together, so that there are at most so many tasks",
    "r": "owners that answer each page of a keyspace, instead of its read quorum",
    "includeHeaders": "true adds the column headers; default false",
    "valueFormat": "binary (default), or json: the schema's column value is a struct, into which values are parsed",
    "pushDown": "true reads less where Spark pushes filters down, for a DataFrame with one query alone; default false",
    "barrier": "true (default) ends each batch of changes at one cut of all shards; false where each shard stands",
    "barrierTimeout": "such as 10s (default): how long a cut may take; the query waits at its last one then",
    "pinLease": "such as 15m (default): how long the state of a query of documents is kept for tasks that wait",
    "readPreference": "nearest (default): all members send, those near location first; or leader",
    "location": "where tasks run, such as region=eu,zone=a",
    "writeId": "id of a batch write: run again, it goes on behind what is there and appends no row twice",
}
"""Every option, and its meaning.  Spark ignores the case of their names, and so does this source."""

ELSEWHERE: Mapping[str, str] = {
    "path": "group", "topic": "group", "subscribe": "group", "subscribepattern": "group", "assign": "group",
    "kafka.bootstrap.servers": "endpoints", "bootstrap.servers": "endpoints", "kafka.group.id": "group",
    "startingoffsetsbytimestamp": "startingTimestamp", "endingtimestamp": "endingOffsets",
    "endingoffsetsbytimestamp": "endingOffsets", "maxrecordsperpartition": "minPartitions",
}
"""Options that other sources have, and the option here that has their meaning."""

LACKING: Mapping[str, str] = {
    "elements": "mode=keyspace shows Strings alone; the client reads members of a Set and fields of a Map by their key",
}
"""Options for what this source does not read, and what there is instead."""

ONLY_IN: Mapping[str, Sequence[Mode]] = {
    "group": (Mode.LOG, Mode.DOCUMENTS, Mode.CHANGES),
    **dict.fromkeys(("keyspace", "maxPartitions", "r"), (Mode.KEYSPACE,)),
    **dict.fromkeys((
        "endingOffsets", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
        "includeHeaders", "readPreference", "location", "committedBatches",
    ), (Mode.LOG,)),
    **dict.fromkeys(("startingOffsets", "startingTimestamp", "failOnDataLoss"), (Mode.LOG, Mode.CHANGES)),
    "pinLease": (Mode.DOCUMENTS, Mode.CHANGES),
    **dict.fromkeys(("barrier", "barrierTimeout"), (Mode.CHANGES,)),
}
"""Options that mean nothing in another mode than these."""

BATCH_ONLY = ("endingOffsets", "pushDown")
OF_STREAM_WRITES = ("checkpointlocation", "queryname", "path")
"""Options of Spark itself that it hands to the sink of a stream, in lower case."""
WRITTEN_WITH = ("endpoints", "profile", "tls.ca", "tls.cert", "tls.key", "tls.serverName", "group", "mode")
"""Options that mean something where rows are written; `writeId` means nothing where they are read."""
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")

PARTITIONS_MAX, OFFSETS_MAX, OWNERS_MAX = 100_000, 2**63 - 1, 100
DIGITS_MAX = 19     # of OFFSETS_MAX
WRITE_ID_MAX = 200
TRIGGER_DELAY = PIN_LEASE = "15m"
PIN_LEASE_MIN_S = 1.0
BARRIER_TIMEOUT, BARRIER_TIMEOUT_MIN_S = "10s", 0.1
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
NEAREST, LEADER = "nearest", "leader"
BINARY, JSON = "binary", "json"
EARLIEST, LATEST = "earliest", "latest"

_BY_LOWER = {name.lower(): name for name in OPTIONS}
_FLAGS = {"true": True, "false": False}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class InvalidOption(ValueError):
    """An option, the schema or a stored offset is wrong; nothing was read.  `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field

    def __reduce__(self) -> tuple[type[InvalidOption], tuple[str, str]]:
        return type(self), (self.field, str(self).removeprefix(f"{self.field}: "))


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of the certificate to show, its key and the CAs to trust; an empty one was not given."""

    ca: str = ""
    cert: str = ""
    key: str = field(default="", repr=False)
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a query, checked.  Empty endpoints and no profile: as the client's environment says."""

    group: str                          # empty with mode=keyspace
    mode: Mode = Mode.LOG
    endpoints: tuple[str, ...] = ()
    profile: str | None = None
    tls: Tls = Tls()
    starting_offsets: str = ""          # not given: a batch begins at the earliest one, a stream at the latest
    starting_ms: int | None = None      # since 1970
    ending_offsets: str = LATEST
    committed_of: str | None = None     # the sink whose complete batches are read; empty: any; None: open batches too
    fail_on_data_loss: bool = True
    offsets_max: int = 0                # of a micro-batch; 0: no limit
    offsets_min: int = 0
    trigger_delay_s: float = 900.0
    pin_lease_s: float = 900.0
    barrier: bool = True
    barrier_timeout_s: float = 10.0
    partitions_min: int = 0
    partitions_max: int = 0             # 0: a task for each range
    include_headers: bool = False
    parses_json: bool = False
    from_leader: bool = False
    pushes_down: bool = False
    location: str = ""
    keyspace: str = ""                  # empty but with mode=keyspace
    r: int | None = None                # None: what the keyspace asks for
    write_id: str = ""                  # empty: the write gets one of its own

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Check the options of a query, in any case of their names.  Raises InvalidOption for the first wrong one."""
        said = _known(given)
        mode = Mode(_one_of(said, "mode", tuple(Mode)))
        for name, modes in ONLY_IN.items():
            if name in said and mode not in modes:
                raise InvalidOption(name, f"goes with mode={' and mode='.join(modes)} alone, and this is mode={mode}")
        group, keyspace = said.get("group", "").strip(), said.get("keyspace", "").strip()
        if not group and mode is not Mode.KEYSPACE:
            raise InvalidOption("group", "is missing: name the log group")
        if not keyspace and mode is Mode.KEYSPACE:
            raise InvalidOption("keyspace", "is missing: name the keyspace to read")
        endpoints = tuple(part.strip() for part in said.get("endpoints", "").split(",") if part.strip())
        if "endpoints" in said and not endpoints:
            raise InvalidOption("endpoints", "is empty: give host:port of one or more nodes, with commas between them")
        if endpoints and "profile" in said:
            raise InvalidOption("profile", "goes without endpoints: give one of the two")
        from_leader = _one_of(said, "readPreference", (NEAREST, LEADER)) == LEADER
        if from_leader and said.get("location"):
            raise InvalidOption("location", "means nothing with readPreference=leader")
        offsets_max, offsets_min = (
            _number(said, name, OFFSETS_MAX) for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"))
        if offsets_max and offsets_min > offsets_max:
            raise InvalidOption("minOffsetsPerTrigger", f"{offsets_min} is above maxOffsetsPerTrigger, {offsets_max}")
        return cls(
            group, mode, endpoints, said.get("profile"), _tls(said),
            starting_offsets=said.get("startingOffsets", ""), starting_ms=_milliseconds(said),
            ending_offsets=said.get("endingOffsets", LATEST), committed_of=_committed_of(said),
            fail_on_data_loss=_flag(said, "failOnDataLoss", True), offsets_max=offsets_max, offsets_min=offsets_min,
            trigger_delay_s=_seconds(said, "maxTriggerDelay", TRIGGER_DELAY),
            pin_lease_s=_seconds(said, "pinLease", PIN_LEASE, PIN_LEASE_MIN_S), barrier=_flag(said, "barrier", True),
            barrier_timeout_s=_seconds(said, "barrierTimeout", BARRIER_TIMEOUT, BARRIER_TIMEOUT_MIN_S),
            partitions_min=_number(said, "minPartitions", PARTITIONS_MAX),
            partitions_max=_number(said, "maxPartitions", PARTITIONS_MAX),
            include_headers=_flag(said, "includeHeaders", False),
            parses_json=_one_of(said, "valueFormat", (BINARY, JSON)) == JSON, from_leader=from_leader,
            location=said.get("location", ""), pushes_down=_flag(said, "pushDown", False),
            keyspace=keyspace, r=_number(said, "r", OWNERS_MAX) or None, write_id=_write_id(said),
        )


def check_write(given: Mapping[str, str], *, streaming: bool) -> None:
    """Raise InvalidOption for an option that means nothing where rows are written."""
    for name in _known(given):
        if name == "writeId" and streaming:
            raise InvalidOption(name, "goes with a batch write alone: a stream has the id that its checkpoint keeps")
        if name not in (*WRITTEN_WITH, "writeId"):
            raise InvalidOption(name, f"means nothing in a write; there are {', '.join(WRITTEN_WITH)} and writeId")


def check_use(given: Mapping[str, str], *, streaming: bool) -> None:
    """Raise InvalidOption for an option that means nothing in a batch query, or in a streaming query."""
    said = {name.lower() for name in given}
    if "writeid" in said:
        raise InvalidOption("writeId", "goes with df.write alone, and this is a read")
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if name.lower() in said:
            here = "a batch query alone, and this is a stream" if streaming else "readStream alone, and this is a batch"
            raise InvalidOption(name, f"goes with {here}")


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options under the names of OPTIONS; the text of an unknown one stays out of its error."""
    said: dict[str, str] = {}
    for name, value in given.items():
        known = _BY_LOWER.get(name.lower())
        if known is None:
            raise InvalidOption(name, f"is no option of this source{_advice(name)}; there are {', '.join(OPTIONS)}")
        if known in said:
            raise InvalidOption(known, "is given twice, in two spellings")
        said[known] = value
    return said


def _advice(name: str) -> str:
    if lacking := LACKING.get(name.lower()):
        return f": {lacking}"
    if meant := ELSEWHERE.get(name.lower()):
        return f": use {meant!r} ({OPTIONS[meant]})"
    return _nearest(name.lower(), list(_BY_LOWER))


def _nearest(word: str, known: list[str]) -> str:
    found = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {_BY_LOWER.get(found[0], str(found[0]))!r}?" if found else ""


def _one_of(said: Mapping[str, str], name: str, words: Sequence[str]) -> str:
    """Return the word of an option, in lower case; the first one is the default."""
    text = said.get(name, words[0]).strip().lower()
    if text not in list(words):
        raise InvalidOption(name, f"{text!r} is none of {', '.join(words)}{_nearest(text, list(words))}")
    return text


def _flag(said: Mapping[str, str], name: str, default: bool) -> bool:
    if name not in said:
        return default
    text = said[name].strip().lower()
    if text not in _FLAGS:
        raise InvalidOption(name, f"{text!r} is neither true nor false")
    return _FLAGS[text]


def _number(said: Mapping[str, str], name: str, most: int) -> int:
    """Return a number from 1 on, 0 where the option is not given."""
    if name not in said:
        return 0
    text = said[name].strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX and 1 <= int(text) <= most):
        raise InvalidOption(name, f"{text!r} is no number from 1 to {most}")
    return int(text)


def _seconds(said: Mapping[str, str], name: str, default: str, least: float = 0.0) -> float:
    text = said.get(name, default).strip().lower()
    found = re.fullmatch(r"(\d{1,9}) ?(ms|s|m|h|d)", text, re.ASCII)
    if found is None:
        raise InvalidOption(name, f"{text!r} is no time such as 30s, 15m or 2h")
    if (seconds := int(found[1]) * SECONDS[found[2]]) < least:
        raise InvalidOption(name, f"{text!r} is below {least:g}s")
    return seconds


def _write_id(said: Mapping[str, str]) -> str:
    text = said.get("writeId", "")
    if "writeId" in said and not (1 <= len(text) <= WRITE_ID_MAX and text.isprintable()):
        raise InvalidOption("writeId", f"must have 1 to {WRITE_ID_MAX} characters that can be printed")
    return text


def _committed_of(said: Mapping[str, str]) -> str | None:
    """Return the name of a sink, "" for any, None where records of open batches are read too."""
    text = said.get("committedBatches", "false").strip()
    if text.lower() in _FLAGS:
        return "" if _FLAGS[text.lower()] else None
    if not (1 <= len(text) <= WRITE_ID_MAX and text.isprintable()):
        raise InvalidOption("committedBatches", "is neither true nor false nor the name of a sink")
    return text


def _milliseconds(said: Mapping[str, str]) -> int | None:
    """Return startingTimestamp in milliseconds since 1970, None without one."""
    if "startingTimestamp" not in said:
        return None
    text = said["startingTimestamp"].strip()
    try:
        if text.isascii() and text.isdecimal():
            moment = _EPOCH + datetime.timedelta(milliseconds=int(text))
        else:
            moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise InvalidOption("startingTimestamp", f"{text!r} has no time zone: write 2026-01-31T12:00:00Z")
        return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)
    except (ValueError, OverflowError) as error:
        if isinstance(error, InvalidOption):
            raise
        raise InvalidOption(
            "startingTimestamp",
            f"{text!r} is neither milliseconds since 1970 nor a moment such as 2026-01-31T12:00:00Z") from None


def _tls(said: Mapping[str, str]) -> Tls:
    """Return the paths; the three files go together."""
    files = {name: said.get(name, "") for name in ("tls.ca", "tls.cert", "tls.key")}
    lacking = [name for name, path in files.items() if not path]
    server_name = said.get("tls.serverName", "")
    if lacking and (len(lacking) < len(files) or server_name):
        raise InvalidOption(lacking[0], "is missing: tls.ca, tls.cert and tls.key go together")
    return Tls(files["tls.ca"], files["tls.cert"], files["tls.key"], server_name)
