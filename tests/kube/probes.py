"""Probes and life cycle hooks: one action against a container, and how often it must fail to count.

Stays out: what a failure leads to (`containers`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.run import janitor

from .client import Object
from .processes import kill_group

LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Target:
    """The container that an action is against."""

    address: str
    ports: Mapping[str, int]
    environment: Mapping[str, str]
    directory: Path
    command: Callable[[list[str]], list[str]]
    """Says a command line in terms of this machine."""


class ActionFailed(Exception):
    """The action did not succeed; the text says how."""


async def act(action: Object, target: Target, timeout_s: float) -> None:
    """Run one exec, httpGet, tcpSocket, grpc or sleep action.  Raises ActionFailed."""
    try:
        async with asyncio.timeout(timeout_s):
            if spec := action.get("httpGet"):
                await _http(spec, target)
            elif spec := action.get("tcpSocket"):
                _, writer = await asyncio.open_connection(
                    spec.get("host") or target.address, _port(spec["port"], target))
                writer.close()
            elif spec := action.get("grpc"):
                await _grpc(spec, target)
            elif spec := action.get("exec"):
                await _exec(spec, target)
            elif spec := action.get("sleep"):
                await asyncio.sleep(spec["seconds"])
            else:
                raise ActionFailed(f"the pod runner knows no action like {action}")
    except TimeoutError as error:
        raise ActionFailed(f"timed out after {timeout_s:g}s") from error
    except (OSError, aiohttp.ClientError, grpc.aio.AioRpcError) as error:
        raise ActionFailed(f"{type(error).__name__}: {error}") from error


def _port(port: int | str, target: Target) -> int:
    if isinstance(port, int):
        return port
    if port not in target.ports:
        raise ActionFailed(f"no port is named {port}")
    return target.ports[port]


async def _http(spec: Object, target: Target) -> None:
    scheme, host = spec.get("scheme", "HTTP").lower(), spec.get("host") or target.address
    url = f"{scheme}://{host}:{_port(spec['port'], target)}{spec.get('path', '/')}"
    headers = {header["name"]: header["value"] for header in spec.get("httpHeaders", ())}
    async with (
        aiohttp.ClientSession() as session,
        # A kubelet does not verify certificates either.
        session.get(url, headers=headers, ssl=False, allow_redirects=False) as answer,
    ):
        if not 200 <= answer.status < 400:
            raise ActionFailed(f"HTTP probe failed with statuscode: {answer.status}")


async def _grpc(spec: Object, target: Target) -> None:
    async with grpc.aio.insecure_channel(f"{target.address}:{spec['port']}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=spec.get("service") or ""))
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise ActionFailed(f"service unhealthy: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")


async def _exec(spec: Object, target: Target) -> None:
    process = await asyncio.create_subprocess_exec(
        *target.command(spec["command"]), env=dict(target.environment), cwd=target.directory, start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            kill_group(process.pid)
            with suppress(ProcessLookupError):
                await process.wait()
    if process.returncode:
        raise ActionFailed(f"command ended with {process.returncode}: {output.decode(errors='replace')[-500:]}")


async def watch(
    probe: Object, target: Target, say: Callable[[bool, str], Awaitable[None] | None], *, until_success: bool = False
) -> None:
    """Repeat a probe and tell every change of its verdict; a startup probe ends with its first success.

    What failed is looked at again sooner than its period says, so that nobody waits for good news that are there; it
    counts as a failure once in a period all the same.
    """
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    clock, period_s = asyncio.get_running_loop().time, probe.get("periodSeconds", 10)
    failures = successes = 0
    counts_again = 0.0
    verdict: bool | None = None
    while True:
        began = clock()
        try:
            await act(probe, target, probe.get("timeoutSeconds", 1))
            failures, successes, counts_again, why = 0, successes + 1, 0.0, ""
        except ActionFailed as failed:
            successes, why = 0, str(failed)
            if began >= counts_again:
                failures, counts_again = failures + 1, began + period_s
        now = verdict
        if successes >= probe.get("successThreshold", 1):
            now = True
        elif failures >= probe.get("failureThreshold", 3):
            now = False
        if now is not None and now != verdict:
            verdict = now
            if (told := say(verdict, why)) is not None:
                await told
            if verdict and until_success:
                return
        await asyncio.sleep(min(period_s, LOOK_S) if failures else period_s)


def base_environment(home: Path, hostname: str) -> dict[str, str]:
    """What every container has: the machine's programs and this checkout's packages and commands."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG", "TMPDIR") if name in os.environ} | janitor.marks()
    # Behind what the tests built: the wheel of etcd has put an older one beside Python.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))
    return {**kept, "PATH": path, "HOME": str(home), "HOSTNAME": hostname, "PYTHONUNBUFFERED": "1"}
