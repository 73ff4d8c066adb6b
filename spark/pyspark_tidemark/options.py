"""Options of a query: which there are, what they mean, and typed errors for those that are wrong.

No error, `repr` or offset shows the value of an option that a user may keep secret (P21).
Stays out: positions inside a log (offsets), columns (schema), connecting.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
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
    "mode": "log (default), documents or changes",
    "includeHeaders": "true adds the column headers to mode=log; default false",
}
"""Every option, and its meaning.  Spark ignores the case of their names, and so does this source."""

ELSEWHERE: Mapping[str, str] = {
    "path": "group", "topic": "group", "subscribe": "group", "subscribepattern": "group", "assign": "group",
    "kafka.bootstrap.servers": "endpoints", "bootstrap.servers": "endpoints", "kafka.group.id": "group",
}
"""Options that other sources have, and the option here that has their meaning."""

_BY_LOWER = {name.lower(): name for name in OPTIONS}
_FLAGS = {"true": True, "false": False}


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

    group: str
    mode: Mode = Mode.LOG
    include_headers: bool = False
    endpoints: tuple[str, ...] = ()
    profile: str | None = None
    tls: Tls = Tls()

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Check the options of a query, in any case of their names.  Raises InvalidOption for the first wrong one."""
        said = _known(given)
        if not (group := said.get("group", "").strip()):
            raise InvalidOption("group", "is missing: name the log group to read")
        endpoints = tuple(part.strip() for part in said.get("endpoints", "").split(",") if part.strip())
        if "endpoints" in said and not endpoints:
            raise InvalidOption("endpoints", "is empty: give host:port of one or more nodes, with commas between them")
        if endpoints and "profile" in said:
            raise InvalidOption("profile", "goes without endpoints: give one of the two")
        mode = said.get("mode", Mode.LOG).strip().lower()
        if mode not in list(Mode):
            raise InvalidOption("mode", f"{mode!r} is none of {', '.join(Mode)}{_nearest(mode, list(Mode))}")
        include_headers = _flag(said, "includeHeaders")
        if include_headers and mode != Mode.LOG:
            raise InvalidOption("includeHeaders", f"goes with mode=log alone, and this is mode={mode}")
        return cls(group, Mode(mode), include_headers, endpoints, said.get("profile"), _tls(said))


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
    if meant := ELSEWHERE.get(name.lower()):
        return f": use {meant!r} ({OPTIONS[meant]})"
    return _nearest(name.lower(), list(_BY_LOWER))


def _nearest(word: str, known: list[str]) -> str:
    found = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {_BY_LOWER.get(found[0], str(found[0]))!r}?" if found else ""


def _flag(said: Mapping[str, str], name: str) -> bool:
    text = said.get(name, "false").strip().lower()
    if text not in _FLAGS:
        raise InvalidOption(name, f"{text!r} is neither true nor false")
    return _FLAGS[text]


def _tls(said: Mapping[str, str]) -> Tls:
    """Return the paths; the three files go together."""
    files = {name: said.get(name, "") for name in ("tls.ca", "tls.cert", "tls.key")}
    lacking = [name for name, path in files.items() if not path]
    server_name = said.get("tls.serverName", "")
    if lacking and (len(lacking) < len(files) or server_name):
        raise InvalidOption(lacking[0], "is missing: tls.ca, tls.cert and tls.key go together")
    return Tls(files["tls.ca"], files["tls.cert"], files["tls.key"], server_name)
