"""A three-node Kafka cluster on loopback: each node is broker and controller, with JVM options of Kafka's own script.

Stays out: its jars (`kafka_jars`), its records (`workers.spark_round`).
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .kafka_jars import Jars
from .peers import NODES, free_ports, servers

FORMAT_S_MAX = 60
IDENTITY = base64.urlsafe_b64encode(b"tidemark-bench-1").decode().rstrip("=")
JVM = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
# The defaults, but for where nodes are, a topic's partitions and copies, and a stop that hands nothing over.
_PROPERTIES = """
process.roles=broker,controller
node.id={number}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
log.dirs={data}
num.partitions={partitions}
default.replication.factor={copies}
controlled.shutdown.enable=false
"""


def configure(directory: Path, ports: list[int], controllers: list[int], partitions: int) -> dict[int, Path]:
    """Write the file of each node; return them by the ports for clients."""
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
    files = {}
    for number, (port, controller) in enumerate(zip(ports, controllers, strict=True), 1):
        files[port] = directory / f"kafka-{number}.properties"
        files[port].write_text(_PROPERTIES.format(
            number=number, port=port, controller=controller, voters=voters, data=directory / f"kafka-{number}",
            partitions=partitions, copies=len(ports)))
    return files


@contextmanager
def running(jars: Jars, directory: Path, partitions: int) -> Iterator[str]:
    """Run the nodes for as long as the block lasts; give their addresses.

    A topic comes with its first record and has so many `partitions`, each with a copy on each node.
    """
    ports = free_ports(2 * NODES)
    files = configure(directory, ports[:NODES], ports[NODES:], partitions)
    java = (jars.java, *JVM, "-cp", str(jars.server / "*"))
    for file in files.values():
        subprocess.run(
            (*java, "kafka.tools.StorageTool", "format", "--cluster-id", IDENTITY, "--config", str(file)),
            stdout=subprocess.DEVNULL, timeout=FORMAT_S_MAX, check=True)
    with servers({port: (*java, "kafka.Kafka", str(file)) for port, file in files.items()}, directory):
        yield ",".join(f"127.0.0.1:{port}" for port in files)
