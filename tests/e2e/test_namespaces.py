"""A node cut off from everybody by its link, in network namespaces; where these are permitted.

`test_network` and `test_delivery` cut connections by a proxy, everywhere; here packets are lost below TCP.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .namespaces import way_in

INSIDE = Path(__file__).with_name("inside_namespaces.py")
PATIENCE_S = 400


def test_a_node_whose_link_is_down_is_read_around():
    way = way_in()
    if isinstance(way, str):
        pytest.skip(way)  # says what of this machine is missing
    command = [*way, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(INSIDE)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert re.search(r"\b3 passed\b", ran.stdout), ran.stdout
