"""Which process holds the other end of a TCP connection on this machine.

A connection is known by both of its ends: several sockets may share a local port.  A look into /proc is no snapshot:
tables of sockets and files move while they are read, so whoever finds nobody looks again.
Stays out: what is done to the connection (fault_proxy).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

End = tuple[str, int]
"""Address and port; IPv4."""


def holder(local: End, remote: End, likely: Iterable[int] = ()) -> int | None:
    """Return the process whose socket goes from `local` to `remote`; None: nobody was found in this look.

    `likely` are looked at before all other processes, newest first.
    """
    inode = _inode(local, remote)
    if inode is None:
        return None
    first = list(likely)
    others = sorted((int(name) for name in os.listdir("/proc") if name.isdecimal()), reverse=True)
    for pid in (*first, *(pid for pid in others if pid not in first)):
        if f"socket:[{inode}]" in _files(pid):
            return pid
    return None


def _inode(local: End, remote: End) -> str | None:
    """Return the inode of a connection that somebody still holds."""
    for table in ("/proc/net/tcp6", "/proc/net/tcp"):  # gRPC opens sockets that speak both
        with open(table) as lines:
            for line in lines:
                fields = line.split(None, 10)
                if fields[1].endswith(_hex(local)) and fields[2].endswith(_hex(remote)) and fields[9] != "0":
                    return fields[9]
    return None


def _hex(end: End) -> str:
    """Return an end as the tables write it, that of a mapped IPv6 address being the same at its end."""
    address, port = end
    return f"{bytes(reversed([int(part) for part in address.split('.')])).hex().upper()}:{port:04X}"


def _files(pid: int) -> Iterator[str]:
    """Yield what the open files of a process are; those that are closed meanwhile are left out, one by one."""
    with contextlib.suppress(OSError):  # it ended, or is not ours
        for file in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(file.path)
