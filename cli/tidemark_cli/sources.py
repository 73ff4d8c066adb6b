"""Lines of a file, a gzip file, a pipe or a terminal, each as soon as it is there; and one value from a pipe.

A thread waits for the descriptor and for the end of the command together: a read that blocks would hold up Ctrl-C, and
an event loop would set a terminal to non-blocking, which the shell inherits.
Stays out: what a line becomes (appends).
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from .failures import CommandFailed

CHUNK_BYTES = 256 << 10
LINE_BYTES_MAX = 64 << 20
"""A batch is smaller everywhere; a source without a line end must not fill the memory."""

_GZIP_WBITS = 31
_ADVICE = "Repair the source; lines before the failure are appended."


class Source:
    """One source of lines.  Raises CommandFailed for a file that cannot be opened or read."""

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == "-" else path
        self.read_bytes = 0
        """Bytes of the source that were read, compressed ones where it is compressed."""
        self._fd, self._owned = (_standard_input(), False) if path == "-" else (_open(path), True)
        status = os.fstat(self._fd)
        self.total_bytes = status.st_size if stat.S_ISREG(status.st_mode) and self._owned else None
        self._packed = path != "-" and Path(path).suffix == ".gz"
        self._stopped = False
        self._wake, self._waker = os.pipe()

    async def chunks(self) -> AsyncIterator[list[bytes]]:
        """Yield lines without their newlines, many at a time; the last line of the source needs none."""
        begun: list[bytes] = []  # of a line whose newline did not come yet
        begun_bytes = 0
        async for text in self._texts():
            first, *others = text.split(b"\n")
            begun.append(first)
            begun_bytes += len(first)
            if begun_bytes > LINE_BYTES_MAX:
                raise self._failed(f"a line is longer than {LINE_BYTES_MAX >> 20} MiB")
            if others:
                lines = [b"".join(begun), *others]
                begun = [lines.pop()]
                begun_bytes = len(begun[0])
                yield lines
        if begun_bytes and not self._stopped:
            yield [b"".join(begun)]

    def stop(self) -> None:
        """End the chunks: a wait for input ends at once, and a line without its end is dropped."""
        if not self._stopped:
            self._stopped = True
            os.write(self._waker, b"x")

    def close(self) -> None:
        """Stop, and close what this source opened."""
        self.stop()
        for descriptor in (self._wake, self._waker, *((self._fd,) if self._owned else ())):
            os.close(descriptor)

    async def _texts(self) -> AsyncIterator[bytes]:
        unpacking = _Gzip() if self._packed else None
        try:
            while packed := await asyncio.to_thread(self._read):
                self.read_bytes += len(packed)
                if unpacking is None:
                    yield packed
                else:
                    for text in unpacking.texts(packed):
                        if self._stopped:
                            return
                        yield text
                        await asyncio.sleep(0)  # a Ctrl-C is heard between pieces too
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from None
        except zlib.error as error:
            raise self._failed(f"it is no intact gzip file: {error}") from None
        if unpacking is not None and unpacking.inside and not self._stopped:
            raise self._failed("the gzip file is cut off: its end is missing")

    def _read(self) -> bytes:
        """Wait until there is something to read, and read it; empty at the end of the source and after `stop`."""
        waiting = select.poll()
        for descriptor in (self._fd, self._wake):
            waiting.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll()}
            if self._wake in ready:
                return b""
            try:
                return os.read(self._fd, CHUNK_BYTES)
            except BlockingIOError:  # another reader of this pipe was faster
                continue

    def _failed(self, what: str) -> CommandFailed:
        return CommandFailed(f"cannot read {self.name}: {what}", _ADVICE, reason="SOURCE_FAILED")


class _Gzip:
    """Unpacks a gzip file, which may have several members, piece by piece."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WBITS)
        self.inside = True
        """Whether the end of a member is still to come."""

    def texts(self, packed: bytes) -> Iterator[bytes]:
        """Yield what is in the next bytes of the file, a bounded piece at a time; raises zlib.error."""
        while packed:
            if not self.inside:
                packed = packed.lstrip(b"\0")  # zeros may fill a file up
                if not packed:
                    return
                self._member, self.inside = zlib.decompressobj(_GZIP_WBITS), True
            before = self._member.copy()
            try:
                text = self._member.decompress(packed, CHUNK_BYTES)
            except zlib.error:
                for at in range(len(packed)):  # up to the byte that is wrong, and there the error once more
                    yield before.decompress(packed[at : at + 1])
                raise
            if text:
                yield text
            self.inside = not self._member.eof
            packed = self._member.unused_data if self._member.eof else self._member.unconsumed_tail


def whole_input(bytes_max: int, what: str) -> bytes:
    """Return standard input to its end.  Raises CommandFailed where it has more than `bytes_max` bytes."""
    try:
        data = sys.stdin.buffer.read(bytes_max + 1)
    except (AttributeError, OSError, ValueError):
        raise _closed() from None
    if len(data) > bytes_max:
        raise CommandFailed(f"{what}: standard input has more than {bytes_max} bytes", "Give at most so many.")
    return data


def _open(path: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandFailed(f"cannot read {path}: {why}", "Give a file, or - for stdin.") from None
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CommandFailed(f"cannot read {path}: it is a directory", "Give a file, or - for stdin.")
    return descriptor


def _standard_input() -> int:
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        raise _closed() from None


def _closed() -> CommandFailed:
    return CommandFailed("cannot read standard input: it is closed", "Give a file, or a pipe.")
