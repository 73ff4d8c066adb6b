"""`tidemark append`: a file or standard input into a log group, one record per line.

Lines keep their order per key.  Every end of the command, a Ctrl-C and a source that fails included, has the same
summary: how lines ended, counted by kind, and the --skip to go on with.
Stays out: reading lines (sources), batching and retries (client).
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from enum import StrEnum
from typing import Annotated, Any

import tidemark
import typer
from rich.progress import Progress, TaskID
from tidemark.errors import Closed, InvalidArgument

from . import target
from .failures import INTERRUPTED, CommandFailed, Failure, describe
from .options import DEFAULT_DIR, ClusterOption, DirOption, GroupArgument, JsonOption, TimeoutOption
from .output import emit, fail, note, progress, table
from .sources import Source
from .tally import DOUBTFUL, Tally

DRAIN_S = 10.0
INTERRUPTED_DRAIN_S = 0.7
"""How long answers are waited for after Ctrl-C, which ends the command within a second."""


class Level(StrEnum):
    """Values of --durability."""

    QUORUM = "quorum"
    COMMIT = "commit"
    LOCAL = "local"


class OnQuorumTimeout(StrEnum):
    """Values of --on-quorum-timeout."""

    WAIT = "wait"
    RAISE = "raise"


class OnRollback(StrEnum):
    """Values of --on-rollback."""

    RETRY = "retry"
    RAISE = "raise"


class _Append:
    """One run of the command."""

    def __init__(self, source: Source, key_field: str | None, skip: int) -> None:
        self.source = source
        self.key_field = key_field
        self.skip = skip
        self.taken = skip  # lines handed to the client
        self.acked = 0
        self.last_acked = skip
        self.bytes = 0
        self.empty_lines = 0
        self.carriage_returns = 0
        self.stopped = False
        self.error: BaseException | None = None
        self.error_line = 0
        """Line that the error is about, 0 where it is about no single one."""
        self.tally = Tally()
        self._waiting: dict[int, None] = {}  # lines without an answer, in order

    @property
    def resume_from(self) -> int:
        """Every line before this one is appended."""
        return next(iter(self._waiting), self.taken)

    async def run(self, appender: tidemark.Appender, bar: Progress, task: TaskID) -> None:
        number = 0
        async for lines in self.source.chunks():
            for line in lines:
                number += 1
                if number <= self.skip:
                    continue
                if self.error is not None:
                    return
                try:
                    await self._take(appender, number, line)
                except (CommandFailed, InvalidArgument) as error:
                    self.error, self.error_line = error, number
                    return
            bar.update(task, completed=self.source.read_bytes, acked=self.acked)

    async def _take(self, appender: tidemark.Appender, number: int, line: bytes) -> None:
        value = line.removesuffix(b"\r")
        self.carriage_returns += len(line) - len(value)
        if not value:
            self.empty_lines += 1
            self.taken = number
            return
        key = None if self.key_field is None else key_of(value, self.key_field)
        await appender.wait_for_room(len(value) + 1024)
        self._watch(number, appender.append_nowait(value, key=key))
        self.bytes += len(value)
        self.taken = number

    def _watch(self, number: int, future: asyncio.Future[tidemark.Appended]) -> None:
        self._waiting[number - 1] = None

        def answered(done: asyncio.Future[tidemark.Appended]) -> None:
            if done.cancelled():
                return
            error = done.exception()
            if error is None:
                del self._waiting[number - 1]
                self.acked += 1
                self.last_acked = max(self.last_acked, number)
                self.tally.appended(done.result())
                return
            self.tally.failed_with(error, number)
            if self.error is None and not self.stopped:
                self.error = error
                self.source.stop()  # the next line may be long in coming

        future.add_done_callback(answered)


def key_of(line: bytes, field: str) -> bytes | None:
    """Return the key of an ndjson line, None where the field is null; `field` may be a path with dots."""
    try:
        value: Any = json.loads(line)
        for part in field.split("."):
            value = value[part]
        if value is None:
            return None
        return value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        what = f"the field {field!r} holds half of a surrogate pair, which has no UTF-8"
    except RecursionError:
        what = "it is nested too deeply"
    except (ValueError, KeyError, TypeError, IndexError):
        what = f"there is no field {field!r} in it, or it is not JSON"
    raise CommandFailed(what, "Correct the line or --key-field; lines before it are appended.", reason="BAD_LINE")


def append(
    group: GroupArgument,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="Lines to append, .gz or not; - is stdin.")] = "-",
    key_field: Annotated[
        str | None, typer.Option("--key-field", help="Take the key from this field of each line, which must be JSON.")
    ] = None,
    durability: Annotated[
        Level | None, typer.Option("--durability", help="What a line waits for. Default: the group's.")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="The same as --durability local.")] = False,
    on_quorum_timeout: Annotated[
        OnQuorumTimeout,
        typer.Option("--on-quorum-timeout", help="When the quorum's time is over: wait for the fate, or stop."),
    ] = OnQuorumTimeout.WAIT,
    on_rollback: Annotated[
        OnRollback, typer.Option("--on-rollback", help="When lines are rolled back: append them anew, or stop.")
    ] = OnRollback.RETRY,
    skip: Annotated[int, typer.Option("--skip", min=0, metavar="LINES", help="Go on behind so many lines.")] = 0,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append the lines of FILE, one record each."""
    if local and durability not in (None, Level.LOCAL):
        raise typer.BadParameter(f"--local and --durability {durability} contradict each other", param_hint="--local")
    level = Level.LOCAL if local else durability
    source = Source(file)
    job = _Append(source, key_field, skip)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            appender = client.appender(
                group, durability=level, timeout_s=timeout_s, on_quorum_timeout=on_quorum_timeout,
                on_rollback=on_rollback,
            )
            with progress(data=True) as bar:
                task = bar.add_task(f"append to {group}", total=source.total_bytes)
                running = asyncio.create_task(job.run(appender, bar, task))

                def give_up() -> None:
                    running.cancel()
                    appender.abort(Closed("interrupted before it was answered"))

                def interrupt() -> None:
                    if job.stopped:
                        give_up()
                        return
                    job.stopped = True
                    source.stop()  # lines that were read are still appended: a pipe does not give them again
                    loop.call_later(INTERRUPTED_DRAIN_S, give_up)

                loop.add_signal_handler(signal.SIGINT, interrupt)
                try:
                    await running
                except asyncio.CancelledError:
                    if not job.stopped:
                        raise
                except (CommandFailed, tidemark.TidemarkError) as error:
                    if not (job.stopped and isinstance(error, Closed)):
                        job.error = job.error or error  # what is under way is waited for first
                finally:
                    source.stop()
                    await _drain(appender)
                    loop.remove_signal_handler(signal.SIGINT)
                    retried["quorum_timeouts"] = appender.quorum_timeouts
                    retried["rolled_back_batches"] = appender.rolled_back_batches

    retried: dict[str, int] = {}
    started = time.monotonic()
    try:
        tidemark.run(main())
    finally:
        source.close()
    seconds = time.monotonic() - started
    failure = _failure(job)
    document = {
        "group": group, "acked": job.acked, "bytes": job.bytes, "seconds": round(seconds, 3),
        "durability": "GROUP_DEFAULT" if level is None else level.name, "outcomes": job.tally.counts, **retried,
        "failed_batches": [batch.document() for batch in job.tally.failed.values()],
        "empty_lines": job.empty_lines, "carriage_returns": job.carriage_returns,
        "complete": not job.stopped and job.error is None, "resume_skip": job.resume_from,
    }
    if failure is not None:
        document |= {"error": failure.reason, "message": failure.message, "advice": failure.advice}
    elif job.stopped:
        advice = f"Go on with --skip {job.resume_from}."
        document |= {"error": "INTERRUPTED", "message": "interrupted", "advice": advice}
    emit(as_json, document, lambda: table(
        ["group", "#records", "#MB", "#seconds", "#records/s", "outcomes"],
        [[group, job.acked, f"{job.bytes / 1e6:.1f}", f"{seconds:.1f}", f"{job.acked / seconds:,.0f}",
          job.tally.sentence()]],
    ))
    if job.empty_lines or job.carriage_returns:
        note(f"left out: {job.empty_lines} empty lines, the carriage return at the end of {job.carriage_returns} lines")
    if failure is not None:
        _explain(job, group)
        fail(failure.message, failure.advice)
        raise typer.Exit(failure.code)
    if job.stopped:
        _explain(job, group)
        fail("interrupted")
        raise typer.Exit(INTERRUPTED)


def _failure(job: _Append) -> Failure | None:
    """Return what stopped the job, as it is shown; a bug is raised as it is."""
    if job.error is None:
        return None
    failure = describe(job.error)
    if failure is None:
        raise job.error
    return failure._replace(message=f"line {job.error_line}: {failure.message}") if job.error_line else failure


def _explain(job: _Append, group: str) -> None:
    """Say what became of lines that did not end well, and how to go on."""
    for batch in job.tally.failed.values():
        lines = f"line {batch.first_line}"
        if batch.lines > 1:
            lines = f"{batch.lines} lines from {batch.first_line} to {batch.last_line}"
        said = batch.outcome.replace("_", " ")
        ask = f"tidemark outcome {group} {batch.shard} {batch.producer.hex()} {batch.sequence} --wait"
        note(f"{lines}: {said}" + (f"; ask with `{ask}`" if batch.outcome in DOUBTFUL else ""))
    if job.tally.failed_unlisted:
        note(f"{job.tally.failed_unlisted} more lines in other batches ended so")
    also = " (some lines behind that are appended already)" if job.last_acked > job.resume_from else ""
    note(f"{job.acked} lines appended; go on with --skip {job.resume_from}{also}")


async def _drain(appender: tidemark.Appender) -> None:
    """Wait for what is under way, at most as long as an append is retried; an abort ends it too."""
    try:
        async with asyncio.timeout(max(DRAIN_S, appender.timeout_s)):
            await appender.close()
    except TimeoutError:
        appender.abort(Closed("not answered in time"))
