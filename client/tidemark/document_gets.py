"""Gets of documents: those of one shard that wait at the same time share one call (U53).

A get joins a call that is not sent yet, so its read begins after it, as a linearizable read must.
Stays out: which node is asked (document_calls).
"""

from __future__ import annotations

import asyncio
from collections import deque

from tidemark_wire.v1 import documents_pb2

from .document import Document
from .document_calls import DocumentCalls, View
from .errors import Closed, Unavailable

CALLS_MAX = 4
"""Calls of one view of one shard under way; later gets wait and share the next one."""
KEYS_MAX = 4096
KEY_BYTES_MAX = 512 << 10

Waiting = deque[tuple[bytes, "asyncio.Future[Document | None]"]]


class _Queue:
    """Gets of one view of one shard."""

    __slots__ = ("calls", "scheduled", "waiting")

    def __init__(self) -> None:
        self.waiting: Waiting = deque()
        self.calls = 0
        self.scheduled = False


class Gets:
    """The gets of one group."""

    def __init__(self, calls: DocumentCalls) -> None:
        self._calls = calls
        self._queues: dict[tuple[int, View], _Queue] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def get(self, shard: int, view: View, key: bytes) -> asyncio.Future[Document | None]:
        """Return the future of a document, None when it does not exist."""
        queue = self._queues.get((shard, view))
        if queue is None:
            queue = self._queues[shard, view] = _Queue()
        future: asyncio.Future[Document | None] = self._loop.create_future()
        queue.waiting.append((key, future))
        if not queue.scheduled and queue.calls < CALLS_MAX:
            queue.scheduled = True
            self._loop.call_soon(self._send, shard, view, queue)
        return future

    def _send(self, shard: int, view: View, queue: _Queue) -> None:
        queue.scheduled = False
        taken: list[tuple[bytes, asyncio.Future[Document | None]]] = []
        size = 0
        while queue.waiting and len(taken) < KEYS_MAX and size < KEY_BYTES_MAX:
            key, future = queue.waiting.popleft()
            if not future.done():
                taken.append((key, future))
                size += len(key)
        if taken:
            queue.calls += 1
            task = asyncio.create_task(self._fetch(shard, view, queue, taken), name="tidemark-get-documents")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if queue.waiting and queue.calls < CALLS_MAX:
            queue.scheduled = True
            self._loop.call_soon(self._send, shard, view, queue)
        elif not queue.waiting and not queue.calls:
            self._queues.pop((shard, view), None)

    async def _fetch(
        self, shard: int, view: View, queue: _Queue, taken: list[tuple[bytes, asyncio.Future[Document | None]]]
    ) -> None:
        try:
            while taken:
                answered = await self._once(shard, view, taken)
                del taken[:answered]
        except Exception as error:
            for _, future in taken:
                if not future.done():
                    future.set_exception(error)
        finally:
            for _, future in taken:
                if not future.done():
                    future.set_exception(Closed("the client was closed before this get was answered"))
            queue.calls -= 1
            self._send(shard, view, queue)

    async def _once(
        self, shard: int, view: View, taken: list[tuple[bytes, asyncio.Future[Document | None]]]
    ) -> int:
        """Ask for documents, answer those that came, and return of how many gets the answer speaks."""
        request = documents_pb2.GetDocumentsRequest(
            group=self._calls.group_name, shard=shard, keys=[key for key, _ in taken], **view.fields()
        )
        answer: documents_pb2.GetDocumentsResponse = await self._calls.unary(shard, view, "Get", request)
        answered = answer.answered
        if not 0 < answered <= len(taken):
            raise Unavailable(f"shard {shard} answered {answered} of {len(taken)} keys")
        found: dict[int, Document] = {}
        for each in answer.documents:
            if each.place >= answered:
                raise Unavailable(f"shard {shard} answered with a document at place {each.place} of {answered}")
            found[each.place] = Document(taken[each.place][0], each.value, each.seqno, shard, each.expires_at_ms)
        for place, (_, future) in enumerate(taken[:answered]):
            if not future.done():
                future.set_result(found.get(place))
        return answered

    def close(self) -> None:
        """Give up every get that is not answered."""
        for task in list(self._running):
            task.cancel()
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for _, future in queue.waiting:
                if not future.done():
                    future.set_exception(Closed("the client was closed before this get was answered"))
            queue.waiting.clear()
