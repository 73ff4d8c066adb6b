"""What the tests of the command line pass around."""

from __future__ import annotations

from collections.abc import Callable

from tests.ran import Ran

Cli = Callable[..., Ran]
