"""Where everything of one run lies: folders and addresses.  The addresses exist in the run's own namespaces alone."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CONTROL_ADDRESS = "10.77.0.1"
"""Of the API server, the registry and CoreDNS."""
NETWORK_BITS = 24
SERVICES = "10.78.0.0/16"
DOMAIN = "cluster.local"
IN_MACHINE = "/var/lib/machine"
"""The path of its disk inside a machine."""


def cache() -> Path:
    """Return the folder of what later runs use again, beside the programs of the Kubernetes tests."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tidemark" / "test-assets" / f"cluster-{platform.machine()}"


def machine_address(number: int) -> str:
    return f"10.77.0.{10 + number}"


def pod_network(number: int) -> str:
    """Return the addresses of a machine's pods."""
    return f"10.77.{100 + number}.0/{NETWORK_BITS}"


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of one run; `logs` outlives a run that fails."""

    state: Path

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def owner(self) -> Path:
        """A file with the number of the command's process."""
        return self.state / "owner"

    @property
    def passed(self) -> Path:
        """A file that is there once every scenario has passed, for a run that `--keep` leaves up."""
        return self.state / "passed"

    @property
    def keys(self) -> Path:
        return self.state / "keys"

    @property
    def programs(self) -> Path:
        """Commands for the quickstart's shell."""
        return self.state / "programs"

    @property
    def resolv_conf(self) -> Path:
        return self.state / "resolv.conf"

    @property
    def host_resolv_conf(self) -> Path:
        """The machine's own, which builds use."""
        return self.state / "host-resolv.conf"

    @property
    def cgroup(self) -> str:
        return self.state.name

    def disk(self, machine: str) -> Path:
        """Return the folder that a machine keeps when it is lost and comes back."""
        return self.state / "machines" / machine
