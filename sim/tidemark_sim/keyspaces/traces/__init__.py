"""Traces: stories that chance does not find, one for each rule that a plausible design leaves out.

`moves` has those of rings that change, `floors` those of tombstones that go, `hints` those of sloppy writes, `cells`
those of acknowledgements and removals.
"""

from __future__ import annotations

from .cells import TRACES as CELLS
from .floors import TRACES as FLOORS
from .hints import TRACES as HINTS
from .moves import TRACES as MOVES
from .trace import Trace

TRACES: dict[str, Trace] = {trace.name: trace for trace in (*MOVES, *FLOORS, *HINTS, *CELLS)}
"""All traces by name."""
