"""A process that computes until its standard input is closed."""

from __future__ import annotations

import sys
import threading

SPIN = 1 << 16


def main() -> None:
    """Keep one processor busy."""
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    total = 0
    while not ended.is_set():
        total += sum(range(SPIN))


if __name__ == "__main__":
    main()
