"""What the tests of the command line pass around."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Result:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Stdout as the one JSON document that it must be."""
        return json.loads(self.out)


Cli = Callable[..., Result]
