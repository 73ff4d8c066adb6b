"""Lines of a source as writes: sent with a bound, counted by how they end, with the --skip to go on with.

Every end of a job, a Ctrl-C and a source that fails included, has the same summary.
Stays out: what a line is written as (appends, document_puts), reading lines (sources), retries (client).
"""

from __future__ import annotations

import asyncio
import json
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, Protocol

import tidemark
import typer
from rich.progress import Progress, TaskID
from tidemark.errors import Closed, InvalidArgument

from .failures import INTERRUPTED, CommandFailed, Failure, describe
from .output import fail, note, progress
from .sources import Source
from .tally import DOUBTFUL, Tally

DRAIN_S = 10.0
INTERRUPTED_DRAIN_S = 0.7
"""How long answers are waited for after Ctrl-C, which ends the command within a second."""


class Writer(Protocol):
    """Takes writes: an appender, or the documents of a group."""

    timeout_s: float

    def close(self) -> Awaitable[None]: ...

    def abort(self, error: Exception) -> None: ...


class Job(ABC):
    """One run of a command that writes lines."""

    def __init__(self, source: Source, skip: int) -> None:
        self.source = source
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
        """Every line before this one is written."""
        return next(iter(self._waiting), self.taken)

    @abstractmethod
    async def write(self, line: bytes) -> asyncio.Future[Any]:
        """Send a line that is not empty and return the future of its answer; waits for room.

        Raises CommandFailed, InvalidArgument for a line that cannot be written.
        """

    def goes_on_after(self, error: BaseException) -> bool:
        """Say whether an error of one line leaves the others alone."""
        return False

    async def run(self, bar: Progress, task: TaskID) -> None:
        number = 0
        async for lines in self.source.chunks():
            for line in lines:
                number += 1
                if number <= self.skip:
                    continue
                if self.error is not None:
                    return
                try:
                    await self._take(number, line)
                except (CommandFailed, InvalidArgument) as error:
                    self.error, self.error_line = error, number
                    return
            bar.update(task, completed=self.source.read_bytes, acked=self.acked)

    async def _take(self, number: int, line: bytes) -> None:
        value = line.removesuffix(b"\r")
        self.carriage_returns += len(line) - len(value)
        if not value:
            self.empty_lines += 1
            self.taken = number
            return
        self._watch(number, await self.write(value))
        self.bytes += len(value)
        self.taken = number

    def _watch(self, number: int, future: asyncio.Future[Any]) -> None:
        self._waiting[number - 1] = None

        def answered(done: asyncio.Future[Any]) -> None:
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
            if self.goes_on_after(error):
                del self._waiting[number - 1]
            elif self.error is None and not self.stopped:
                self.error = error
                self.source.stop()  # the next line may be long in coming

        future.add_done_callback(answered)

    def failure(self) -> Failure | None:
        """Return the error that stopped the job, as it is shown; a bug is raised as it is."""
        if self.error is None:
            return None
        failure = describe(self.error)
        if failure is None:
            raise self.error
        return failure._replace(message=f"line {self.error_line}: {failure.message}") if self.error_line else failure

    def document(self) -> dict[str, Any]:
        """Return how the job ended as plain data."""
        failure = self.failure()
        document: dict[str, Any] = {
            "failed_batches": [batch.document() for batch in self.tally.failed.values()],
            "empty_lines": self.empty_lines, "carriage_returns": self.carriage_returns,
            "complete": not self.stopped and self.error is None, "resume_skip": self.resume_from,
        }
        if failure is not None:
            document |= {"error": failure.reason, "message": failure.message, "advice": failure.advice}
        elif self.stopped:
            advice = f"Go on with --skip {self.resume_from}."
            document |= {"error": "INTERRUPTED", "message": "interrupted", "advice": advice}
        return document


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


async def drive(job: Job, writer: Writer, title: str) -> None:
    """Run a job to its end, or to a Ctrl-C, and wait for what is under way."""
    loop, source = asyncio.get_running_loop(), job.source
    with progress(data=True) as bar:
        task = bar.add_task(title, total=source.total_bytes)
        running = asyncio.create_task(job.run(bar, task))

        def give_up() -> None:
            running.cancel()
            writer.abort(Closed("interrupted before it was answered"))

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
            await _drain(writer)
            loop.remove_signal_handler(signal.SIGINT)


def finish(job: Job, group: str, done: str) -> None:
    """Say what did not end well and how to go on, and exit with its code; `done` is the verb of the command."""
    if job.empty_lines or job.carriage_returns:
        note(f"left out: {job.empty_lines} empty lines, the carriage return at the end of {job.carriage_returns} lines")
    failure = job.failure()
    if failure is not None:
        _explain(job, group, done)
        fail(failure.message, failure.advice)
        raise typer.Exit(failure.code)
    if job.stopped:
        _explain(job, group, done)
        fail("interrupted")
        raise typer.Exit(INTERRUPTED)


def _explain(job: Job, group: str, done: str) -> None:
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
    also = f" (some lines behind that are {done} already)" if job.last_acked > job.resume_from else ""
    doubtful = sum(job.tally.counts[kind] for kind in DOUBTFUL)
    also += f" ({doubtful} lines behind that had no answer, and may be in the log)" if doubtful else ""
    note(f"{job.acked} lines {done}; go on with --skip {job.resume_from}{also}")


async def _drain(writer: Writer) -> None:
    """Wait for what is under way, at most as long as a write is retried; an abort ends it too."""
    try:
        async with asyncio.timeout(max(DRAIN_S, writer.timeout_s)):
            await writer.close()
    except TimeoutError:
        writer.abort(Closed("not answered in time"))
