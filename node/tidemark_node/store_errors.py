"""How the store fails: kinds of error, each with its own consequence, and the faults that tests inject.

Stays out: the database itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class StoreRefused(Exception):
    """This directory must not be opened by this process; the message says why and what to do."""


class StoreDamaged(Exception):
    """What is on the disk cannot be trusted; the store must be moved aside."""


class StoreFailed(Exception):
    """The disk did not take a write or could not be opened for writing; what was asked is not durable."""

    def __init__(self, message: str, no_space: bool) -> None:
        super().__init__(message)
        self.no_space = no_space


class EntryDamaged(Exception):
    """The entry at `offset` cannot be read intact."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"offset {offset}")
        self.offset = offset


class Faults:
    """What a test breaks: set an error and every write, sync or open raises it until it is None again."""

    def __init__(self) -> None:
        self.write: OSError | None = None
        self.sync: OSError | None = None

    def check_write(self) -> None:
        if self.write is not None:
            raise self.write

    def check_sync(self) -> None:
        if self.sync is not None:
            raise self.sync


def typed(error: Exception, path: str) -> Exception:
    """Give an error of the binding, which raises bare exceptions, one of our types."""
    text = str(error)
    if isinstance(error, StoreRefused | StoreDamaged | StoreFailed):
        return error
    if text.startswith("Corruption") or "No such file" in text:
        return StoreDamaged(f"{path}: {text}")
    if "olumn families not opened" in text:
        return StoreRefused(f"{path} was written by a newer release: start it with that one ({text})")
    if "lock" in text.lower() and "LOCK" in text:
        return StoreRefused(f"{path} is in use by another process: stop it first ({text})")
    return StoreFailed(f"{path}: {text}", no_space="No space left" in text or "NoSpace" in text)


@contextmanager
def edge(path: object) -> Iterator[None]:
    """Around calls of the binding off the hot path: what they raise becomes one of our types."""
    try:
        yield
    except Exception as error:
        raise typed(error, str(path)) from error
