"""One container of a pod as a local process: its probes, its restarts, its end.

Stays out: what it is told (`commands`), the pod around it (`pods`), isolation of any kind.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from . import probes
from .client import Object
from .commands import CannotStart, Pod, command_of, environment_of, local_command
from .processes import kill_group
from .rewriting import Rewriting

FIRST_BACK_OFF_S, BACK_OFF_MAX_S, BACK_OFF_FORGOTTEN_S = 0.25, 8.0, 60.0
"""A kubelet begins with ten seconds and ends with five minutes; so much patience proves nothing more."""


@dataclass
class Container:
    """One container; `run` returns when it shall not run any more."""

    pod: Pod
    spec: Object
    init: bool = False
    ready: bool = False
    started: bool = False
    restarts: int = 0
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Object = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None
    _stopping: bool = False
    _exited: asyncio.Event = field(default_factory=asyncio.Event)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _killing: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def log_file(self) -> Path:
        return self.pod.directory / f"{self.name}.log"

    @property
    def exit_code(self) -> int | None:
        code = self.state.get("terminated", {}).get("exitCode")
        return int(code) if code is not None else None

    def status(self) -> Object:
        return {
            "name": self.name, "image": self.spec["image"], "imageID": self.spec["image"], "state": self.state,
            "lastState": self.last_state, "ready": self.ready, "started": self.started,
            "restartCount": self.restarts,
            "containerID": f"process://{self.process.pid}" if self.process else "",
        }

    def _set(self, state: Object) -> None:
        self.state = state
        self.pod.changed()

    # --- life

    async def run(self) -> None:
        back_off = FIRST_BACK_OFF_S
        while not self._stopping:
            began = asyncio.get_running_loop().time()
            try:
                code = await self._once()
            except CannotStart as problem:
                self._set({"waiting": {"reason": problem.reason, "message": str(problem)}})
            else:
                policy = self.pod.manifest["spec"].get("restartPolicy", "Always")
                done = code == 0 if self.init and policy != "Never" else policy == "Never"
                if self._stopping or done or (policy == "OnFailure" and code == 0):
                    return
                if asyncio.get_running_loop().time() - began > BACK_OFF_FORGOTTEN_S:
                    back_off = FIRST_BACK_OFF_S
                self.last_state = self.state
                message = f"back-off {back_off:g}s restarting failed container={self.name} pod={self.pod.name}"
                self._set({"waiting": {"reason": "CrashLoopBackOff", "message": message}})
                self.restarts += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(back_off):
                    await self._wake.wait()
            back_off = min(back_off * 2, BACK_OFF_MAX_S)

    async def _once(self) -> int:
        """Run the process once and return its exit code as a kubelet would say it."""
        environment = await environment_of(self.pod, self.spec)
        rewriting = self.pod.rewriting(self.spec)
        command = command_of(self.pod, self.spec, environment, rewriting)
        directory = Path(rewriting(self.spec["workingDir"])) if "workingDir" in self.spec else self.pod.directory
        try:
            with self.log_file.open("ab") as log:
                self.process = process = await asyncio.create_subprocess_exec(
                    *command, env=environment, cwd=directory, stdin=asyncio.subprocess.DEVNULL, stdout=log,
                    stderr=log, start_new_session=True)
        except OSError as error:
            raise CannotStart("RunContainerError", str(error)) from error
        if self._stopping:  # the end was asked for while the process was being made
            kill_group(process.pid)
        self._exited.clear()
        try:
            return await self._supervise(process, self._target(environment, directory, rewriting))
        finally:
            self._exited.set()

    async def _supervise(self, process: asyncio.subprocess.Process, target: probes.Target) -> int:
        began = _now()
        self._set({"running": {"startedAt": began}})
        watchers = asyncio.ensure_future(self._probe(target))
        try:
            code = await process.wait()
        finally:
            kill_group(process.pid)  # what the process started goes with it, as with a container's first process
            watchers.cancel()
            await asyncio.gather(watchers, return_exceptions=True)
        self.ready = self.started = False
        code = 128 - code if code < 0 else code
        self._set({"terminated": {
            "exitCode": code, "reason": "Error" if code else "Completed", "startedAt": began, "finishedAt": _now()}})
        return code

    async def stop(self, grace_s: float) -> None:
        """preStop, SIGTERM, and SIGKILL when the grace is over; the container does not come back."""
        self._stopping = True
        self._wake.set()
        await self._terminate(grace_s)

    async def _terminate(self, grace_s: float) -> None:
        process = self.process
        if process is None or process.returncode is not None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                if hook := self.spec.get("lifecycle", {}).get("preStop"):
                    with suppress(probes.ActionFailed, CannotStart):
                        environment = await environment_of(self.pod, self.spec)
                        target = self._target(environment, self.pod.directory, self.pod.rewriting(self.spec))
                        await probes.act(hook, target, grace_s)
                _signal(process, signal.SIGTERM)
                await self._exited.wait()
                return
        _signal(process, signal.SIGKILL)
        await self._exited.wait()

    def kill(self) -> None:
        """SIGKILL, as a crash; it is restarted by its policy."""
        if self.process is not None:
            _signal(self.process, signal.SIGKILL)

    def abandon(self) -> None:
        """SIGKILL, for good."""
        self._stopping = True
        self._wake.set()
        self.kill()

    async def gone(self) -> None:
        """Wait for the end of a process that was killed."""
        if self.process is not None:
            await self.process.wait()

    def _target(self, environment: Mapping[str, str], directory: Path, rewriting: Rewriting) -> probes.Target:
        ports = {port["name"]: port["containerPort"] for port in self.spec.get("ports", ()) if "name" in port}
        return probes.Target(
            self.pod.address, ports, environment, directory,
            lambda command: local_command(command, environment, rewriting))

    # --- probes

    async def _probe(self, target: probes.Target) -> None:
        if startup := self.spec.get("startupProbe"):
            await probes.watch(startup, target, self._alive_or_killed, until_success=True)
        self.started = True
        if "readinessProbe" not in self.spec:
            self.ready = True
        self.pod.changed()
        watches = []
        if liveness := self.spec.get("livenessProbe"):
            watches.append(probes.watch(liveness, target, self._alive_or_killed))
        if readiness := self.spec.get("readinessProbe"):
            watches.append(probes.watch(readiness, target, self._say_ready))
        await asyncio.gather(*watches)

    def _say_ready(self, ready: bool, why: str) -> None:
        self.ready = ready
        self.pod.changed()

    async def _alive_or_killed(self, alive: bool, why: str) -> None:
        if not alive and not self._stopping:
            with self.log_file.open("a") as log:
                log.write(f"[pod runner] killed, its probe failed: {why}\n")
            # Apart, for the end of the process cancels the probes.
            self._killing = asyncio.ensure_future(
                self._terminate(self.pod.manifest["spec"].get("terminationGracePeriodSeconds", 30)))


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        if number == signal.SIGTERM:
            process.send_signal(signal.SIGCONT)  # a paused one could not hear it
        process.send_signal(number)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
