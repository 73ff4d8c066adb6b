"""How a reader behaves: its options, checked once, each refusal naming the option.

Stays out: from where to where it reads (reader).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark_core.delivery.location import InvalidLocation, Location, parse_location
from tidemark_core.delivery.order import Mode
from tidemark_core.delivery.reader import ReaderSettings
from tidemark_core.delivery.slowness import SlowDetection

from .errors import InvalidArgument
from .payload import DECODED_BYTES_MAX
from .settings import at_least, one_of

SCD, LOCAL, ALL, LEADER = "scd", "local", "all", "leader"
MODES = (SCD, LOCAL, ALL, LEADER)
DEFAULT_MODE = SCD
RAISE, SKIP = "raise", "skip"
UNDECODABLE = (RAISE, SKIP)

WINDOW_BYTES_MIN = 64 << 10
_CORE_MODES = {SCD: Mode.SINGLE_COPY, LOCAL: Mode.LOCAL, ALL: Mode.ALL_SEND_ALL}


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Options of `Client.read`.  `window_bytes` 0 takes an even part of `buffer_bytes`."""

    mode: str
    location: Location
    gaps: bool
    undecodable: str
    decoded_bytes_max: int
    buffer_bytes: int
    window_bytes: int
    frame_bytes: int
    timeout_s: float
    scd_timeout_ms: int
    all_send_all_timeout_ms: int
    started_timeout_ms: int
    slow_detection: SlowDetection

    @classmethod
    def checked(
        cls,
        *,
        mode: str = DEFAULT_MODE,
        location: str | Location | None = None,
        gaps: bool = False,
        undecodable: str = RAISE,
        decoded_bytes_max: int = DECODED_BYTES_MAX,
        buffer_bytes: int = 64 << 20,
        window_bytes: int | None = None,
        frame_bytes: int = 2 << 20,
        timeout_s: float = 30.0,
        scd_timeout_s: float = 10.0,
        all_send_all_timeout_s: float = 30.0,
        started_timeout_s: float = 5.0,
        slow_detection: SlowDetection | str = SlowDetection.ON,
    ) -> ReadSettings:
        """Return settings; raises InvalidArgument."""
        one_of("mode", mode, MODES)
        if not isinstance(gaps, bool):
            raise InvalidArgument("gaps", f"is {gaps!r}, must be True or False")
        one_of("undecodable", undecodable, UNDECODABLE)
        one_of("slow_detection", slow_detection, tuple(map(str, SlowDetection)))
        where = _location(location)
        if mode == SCD and any(where):
            mode = LOCAL
        if mode == LOCAL and not any(where):
            raise InvalidArgument("location", "is missing; mode 'local' reads from what is near it, as in 'zone=a'")
        if mode in (ALL, LEADER) and any(where):
            raise InvalidArgument("location", f"means nothing in mode {mode!r}; use 'scd' or 'local'")
        return cls(
            mode, where, gaps, undecodable,
            at_least("decoded_bytes_max", decoded_bytes_max, 1),
            at_least("buffer_bytes", buffer_bytes, 1),
            0 if window_bytes is None else int(at_least("window_bytes", window_bytes, 1)),
            at_least("frame_bytes", frame_bytes, 1),
            at_least("timeout_s", timeout_s, 0.001),
            _ms("scd_timeout_s", scd_timeout_s),
            _ms("all_send_all_timeout_s", all_send_all_timeout_s),
            _ms("started_timeout_s", started_timeout_s),
            SlowDetection(slow_detection),
        )

    @property
    def core_mode(self) -> Mode:
        """How members share the sending."""
        return _CORE_MODES[self.mode]

    def of_shard(self, shards: int) -> ReaderSettings:
        """Return the settings of one of so many shards.

        What is consumed slowly may fill a window, and as much again may be on its way: an even part of half the buffer.
        """
        window_bytes = self.window_bytes or max(WINDOW_BYTES_MIN, self.buffer_bytes // (2 * shards))
        return ReaderSettings(
            scd_timeout_ms=self.scd_timeout_ms, all_send_all_timeout_ms=self.all_send_all_timeout_ms,
            started_timeout_ms=self.started_timeout_ms, window_bytes=window_bytes, slow_detection=self.slow_detection,
        )


def _location(given: str | Location | None) -> Location:
    if isinstance(given, Location):
        return given
    if given is not None and not isinstance(given, str):
        raise InvalidArgument("location", f"is {given!r}, must be a text such as 'region=eu,zone=a'")
    try:
        return parse_location(given or "")
    except InvalidLocation as error:
        raise InvalidArgument("location", str(error).removeprefix("location: ")) from error


def _ms(field: str, seconds: float) -> int:
    return int(at_least(field, seconds, 0.001) * 1000)
