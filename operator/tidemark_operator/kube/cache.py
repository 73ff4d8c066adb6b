"""Cache: objects of one kind as last seen, by namespace and name; an older version never replaces a newer one.

Thousands of objects are kept, and most of what they say is the same: equal texts are kept once, and who manages which
field is not kept at all.
Stays out: where objects come from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ..resources.labels import Label

Object = dict[str, Any]
Name = tuple[str, str]


def name_of(item: Object) -> Name:
    """Return namespace, empty for what belongs to none, and name."""
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def version_of(item: Object) -> int:
    """Return the version of an object; of one kind they are numbers that grow."""
    return int(item["metadata"]["resourceVersion"])


class Cache:
    """Told of by watches, lists, and the answers to our own writes, in any order."""

    def __init__(self) -> None:
        self._items: dict[Name, Object] = {}
        self._by_cluster: dict[Name, dict[str, Object]] = {}  # by the label, where there is one
        self._gone: dict[Name, int] = {}  # versions of deletions, so that a late answer does not bring one back
        self.complete = False

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._items.values()))

    def get(self, namespace: str, name: str) -> Object | None:
        return self._items.get((namespace, name))

    def of_cluster(self, namespace: str, cluster: str) -> dict[str, Object]:
        """Return the objects with a cluster's label, by name."""
        return dict(self._by_cluster.get((namespace, cluster), {}))

    def learn(self, item: Object) -> bool:
        """Take an object in; False when a newer version is known already.

        An event of the version that is known is news still: the answer to our own write told of it, and nobody else.
        """
        name, version = name_of(item), version_of(item)
        known = self._items.get(name)
        if version <= self._gone.get(name, 0) or (known is not None and version < version_of(known)):
            return False
        self._gone.pop(name, None)
        self._drop(name)
        kept = _compact(item)
        self._items[name] = kept
        if cluster := _cluster_label(kept):
            self._by_cluster.setdefault((name[0], cluster), {})[name[1]] = kept
        return True

    def _drop(self, name: Name) -> bool:
        known = self._items.pop(name, None)
        if known is not None and (cluster := _cluster_label(known)):
            del self._by_cluster[name[0], cluster][name[1]]
        return known is not None

    def forget(self, item: Object) -> bool:
        """An object was deleted; False when what is known is newer."""
        name, version = name_of(item), version_of(item)
        known = self._items.get(name)
        if known is not None and version < version_of(known):
            return False
        self._gone[name] = max(version, self._gone.get(name, 0))
        return self._drop(name)

    def replace(self, namespace: str, items: list[Object], version: int) -> list[Object]:
        """Take a whole list of a namespace in ("": of all), made at `version`; return what changed or is gone."""
        changed = [item for item in items if self._items.get(name_of(item)) != _compact(item) and self.learn(item)]
        listed = {name_of(item) for item in items}
        for name, known in list(self._items.items()):
            if namespace in ("", name[0]) and name not in listed and version_of(known) <= version:
                self._drop(name)
                self._gone[name] = version
                changed.append(known)
        self._gone = {name: at for name, at in self._gone.items() if at >= version}
        self.complete = True
        return changed


def _cluster_label(item: Object) -> str:
    return str((item["metadata"].get("labels") or {}).get(Label.CLUSTER.value, ""))


def _compact(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {sys.intern(str(name)): _compact(item, name) for name, item in value.items()
                if not (key == "metadata" and name == "managedFields")}
    if isinstance(value, list):
        return [_compact(item) for item in value]
    return sys.intern(value) if type(value) is str else value
