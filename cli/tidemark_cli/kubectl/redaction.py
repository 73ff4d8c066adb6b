"""What is left out of a report: values that may be secret, in objects and in texts.

Secrets are never asked for; this is for what people write into other objects, and for what programs log.
Pure.  Stays out: collecting (report).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(left out)"

_SECRET_NAME = re.compile(
    r"pass(word|phrase|wd)?$|secret$|token$|credential|api[-_]?key|private[-_]?key", re.IGNORECASE)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_IN_TEXT = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"(?i)\b(authorization\W{1,4}(?:bearer|basic)\s+)\S+"), rf"\g<1>{HIDDEN}"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^/\s:@\"']+:)[^@\s/\"']+@"), rf"\g<1>{HIDDEN}@"),
    (re.compile(r"(?i)\b((?:[a-z0-9]+[-_])*(?:password|passwd|passphrase|secret|token|api[-_]?key)[\"']?\s*[=:]\s*[\"']?)"
                r"[^\s\"',;}]+"), rf"\g<1>{HIDDEN}"),
)


def text(found: str) -> str:
    """Return a text without what looks like a secret."""
    for pattern, instead in _IN_TEXT:
        found = pattern.sub(instead, found)
    return found


def document(found: Any) -> Any:
    """Return an object without values whose name says that they are secret, and without who wrote which field.

    Environment variables of containers are kept by name only where a value stands in the object itself.
    """
    match found:
        case {"name": str(), "value": str()} if set(found) == {"name", "value"}:
            hidden = _SECRET_NAME.search(found["name"])
            return {"name": found["name"], "value": HIDDEN if hidden else text(found["value"])}
        case Mapping():
            return {
                key: HIDDEN if _hides(key, value) else document(value) for key, value in found.items()
                if key not in ("managedFields", _LAST_APPLIED)}
        case list():
            return [document(each) for each in found]
        case str():
            return text(found)
    return found


def _hides(key: str, value: Any) -> bool:
    return isinstance(value, str) and bool(_SECRET_NAME.search(key))
