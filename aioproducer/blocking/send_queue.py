"""The queue between the threads and the loop: records on their way to the buffer, calls, and deliveries.

Threads append to the queue and wake the loop once; the loop takes all entries, in order. If the buffer has no room for
a record, the record waits in the lane of its topic, and the following records of that topic wait behind it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from copy import copy
from functools import partial
from typing import Any, TypeAlias, TypeVar

from aioproducer import BufferFullError, Headers, KafkaTimeoutError, ProducerClosed, RecordMetadata
from aioproducer import Delivery as AsyncDelivery
from aioproducer import Producer as AsyncProducer
from aioproducer.blocking.loop_thread import (
    Call,
    Flag,
    LoopThread,
    check_may_block,
    generation,
    running_loop,
    wait_for,
)
from aioproducer.errors import ForkedError, without_tracebacks

T = TypeVar("T")

Record = tuple[str, bytes | None, bytes | None, int | None, int | None, Headers | None]
"""The arguments to `send`, in order."""


class SendQueue:
    """Records and calls that threads hand over to one asyncio producer.

    Threads call the methods in the first section; the loop calls those in the second."""

    def __init__(self, inner: AsyncProducer) -> None:
        self._inner = inner
        self.log = inner._config.log(__name__)
        self.thread: LoopThread | None = None
        """The loop thread. It is set only once, by start()."""
        self.places: set[tuple[str, int | None]] = set()
        """The topics and partitions that are known to exist. The entry (topic, None) is for records without a
        partition."""
        # Threads append entries; the loop removes them.
        self._queue: deque[_Queued | Call[Any]] = deque()
        self._is_woken = False
        # Changed only by the loop.
        self.lanes: dict[str, _Lane] = {}
        """The lanes, by topic. Threads only check whether a lane exists."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused = 0
        """The number of queued records that did not get into the buffer."""

    # -------------------------------------------------------------------------------------------- in any thread

    def own_thread(self) -> LoopThread:
        """Return the loop thread, which may have ended.

        Raises:
            ForkedError: the process was forked after start().
        """
        assert self.thread is not None
        if self.thread.generation != generation():
            raise ForkedError("the process was forked after start(); create a producer in the child process")
        return self.thread

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, record: Record) -> Delivery:
        """Queue a record that is known to be valid; the loop will append it."""
        delivery = Delivery(self, record[0])
        self._queue.append((delivery, record))
        self._wake()
        return delivery

    def call(self, function: Callable[[], Awaitable[T]]) -> Call[T]:
        """Queue a call; the loop will await `function()` after it has tried to append the records that were queued
        earlier."""
        call = Call(function)
        self._queue.append(call)
        self._wake()
        return call

    def _wake(self) -> None:
        if self._is_woken:
            return
        try:
            self._is_woken = True
            if self.own_thread().post(self._drain):
                return
        except BaseException:  # after a Ctrl-C here, the next put() or call() wakes the loop
            self._is_woken = False
            raise
        self._is_woken = False
        self._reject_all()

    def _reject_all(self) -> None:
        """Reject the entries that threads queued while the loop was shutting down."""
        while self._queue:
            entry = self._queue.popleft()
            if isinstance(entry, tuple):
                entry[0]._fail(ProducerClosed("the producer was closed before the record reached the buffer"))

    def soon(self, function: Callable[[], object]) -> None:
        """Call `function` in the loop, or in this thread if the loop no longer exists."""
        if self.thread is None or not self.thread.post(function):
            function()

    def note_unretrieved(self, topic: str, error: BaseException) -> None:
        """Count a rejected record whose error no caller has retrieved."""
        self._inner._accumulator.note_unsent(topic, (error,))

    # ---------------------------------------------------------------------------------------------- in the loop

    def _drain(self) -> None:
        self._is_woken = False  # set this first, so that entries that arrive later wake the loop again
        queue, lanes, try_send = self._queue, self.lanes, self._inner.try_send
        # Without the GIL, only a lock guarantees this order; rotate() and append() both take the deque's lock.
        queue.rotate(0)
        for _ in range(len(queue)):
            entry = queue.popleft()
            if not isinstance(entry, tuple):
                entry.start()
                continue
            delivery, record = entry
            if lanes and (lane := lanes.get(record[0])) is not None:
                lane.append(entry)
                continue
            try:
                delivery._appended(try_send(*record))
            except BufferFullError:
                self._open_lane(entry)
            except Exception as error:
                self._reject(entry, error)

    def _open_lane(self, entry: _Queued) -> None:
        topic = entry[1][0]
        self.lanes[topic] = deque([entry])
        task = asyncio.get_running_loop().create_task(self._serve(topic), name="aioproducer-lane")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, topic: str) -> None:
        """Append the records of a lane in order, each as soon as the buffer has room."""
        lane = self.lanes[topic]
        try:
            while lane:
                waited = len(lane)
                entry = lane.popleft()
                if not isinstance(entry, tuple):
                    _settle(entry)
                elif not await self._append_when_room(entry):
                    # The following records have already waited for max_block_ms with this one, and must not wait again.
                    for _ in range(waited - 1):
                        self._append_now(lane.popleft())
        finally:
            del self.lanes[topic]
            for entry in lane:  # entries remain only if the loop's shutdown or a bug ended this task
                if isinstance(entry, tuple):
                    self._reject(entry, ProducerClosed("the producer was closed before the buffer had room"))
                else:
                    _settle(entry)

    async def _append_when_room(self, entry: _Queued) -> bool:
        """Append a record as soon as the buffer has room. Return False if there was no room within max_block_ms."""
        try:
            entry[0]._appended(await self._inner.send(*entry[1]))
        except KafkaTimeoutError as error:
            self.places.clear()  # the topic may no longer exist, so the next `send` asks the cluster
            self._reject(entry, error)
            return False
        except Exception as error:
            self._reject(entry, error)
        return True

    def _append_now(self, entry: _Queued | asyncio.Future[None]) -> None:
        if not isinstance(entry, tuple):
            _settle(entry)
            return
        try:
            entry[0]._appended(self._inner.try_send(*entry[1]))
        except Exception as error:
            self._reject(entry, error)

    def _reject(self, entry: _Queued, error: BaseException) -> None:
        self.refused += 1
        # A traceback would keep the entry alive, but an unreferenced delivery must be freed so that __del__ counts it.
        entry[0]._fail(without_tracebacks(error))
        self._inner._note_rejected(self._inner._transaction.number, error)

    async def settled(self, topic: str | None = None) -> None:
        """Wait until all records queued so far, for one topic or for all topics, have been buffered or rejected."""
        loop = asyncio.get_running_loop()
        waits = []
        for name in [topic] if isinstance(topic, str) else list(self.lanes):
            if (lane := self.lanes.get(name)) is not None:
                waits.append(loop.create_future())
                lane.append(waits[-1])
        if waits:
            await asyncio.wait(waits)

    async def settled_within(self, timeout: float | None) -> float | None:
        """Wait like `settled()`, for all topics, and return how many seconds of the timeout are left.

        Raises:
            TimeoutError: the timeout has passed.
        """
        if not self.lanes or isinstance(timeout, bool) or not isinstance(timeout, int | float | None):
            return timeout  # an invalid timeout is rejected by the call that uses it
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(timeout):
            await self.settled()
        return None if timeout is None else max(0.0, timeout - (loop.time() - began))

    async def ended(self) -> None:
        """Wait until all lanes have ended. This does not take long once the producer is closed, because a closed
        producer accepts no more records."""
        while self._tasks:
            await asyncio.wait(self._tasks)


class Delivery:
    """The future for one record, returned by `send`, with the methods of concurrent.futures.Future.

    When `send` returns, the record is in the buffer or in the queue in front of it. If a queued record is rejected
    later, its delivery raises the error that `send` would have raised.
    """

    # An acknowledgement requires no work in this class: the state is looked up when a method is called.

    __slots__ = (
        "_callbacks",
        "_delivery",
        "_ended",
        "_error",
        "_is_cancelled",
        "_is_seen",
        "_sends",
        "_topic",
    )

    # Only the loop thread sets the fields, except for _is_seen and _ended.

    def __init__(self, sends: SendQueue, topic: str, delivery: AsyncDelivery | None = None) -> None:
        self._sends = sends
        self._topic = topic
        self._delivery = delivery
        """The asyncio producer's delivery; None while the record is in the queue."""
        self._error: BaseException | None = None
        """Why the record did not get into the buffer."""
        self._is_cancelled = False
        self._is_seen = False
        self._callbacks: list[Callable[[Delivery], object]] | None = None
        self._ended: Flag | None = None

    def _appended(self, delivery: AsyncDelivery) -> None:
        self._delivery = delivery
        if self._is_cancelled:
            delivery.cancel()
            return
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                self._watch(callback)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            self._sends.soon(partial(self._call_back, callback))

    def _watch(self, callback: Callable[[Delivery], object]) -> None:
        if self._delivery is not None and not self._is_cancelled:
            self._delivery.add_done_callback(lambda _: self._call_back(callback))
        elif self.done():
            self._sends.soon(partial(self._call_back, callback))
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def _call_back(self, callback: Callable[[Delivery], object]) -> None:
        try:
            callback(self)
        except Exception:
            self._sends.log.exception("a callback of %r failed", self)

    def done(self) -> bool:
        """Return True if there is a result or an error, or if the delivery was cancelled."""
        if self._is_cancelled or self._error is not None:
            return True
        return self._delivery is not None and self._delivery.done()

    def running(self) -> bool:
        """Return True while there is no result, no error and no cancellation."""
        return not self.done()

    def cancelled(self) -> bool:
        """Return True if the delivery was cancelled."""
        return self._is_cancelled

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the record's metadata and return it.

        Args:
            timeout: in seconds; None to wait as long as the delivery may take (delivery_timeout_ms).

        Raises:
            DeliveryError: the record was not delivered; `outcome` says whether it may be in the log.
            TimeoutError: there is no result yet; the producer continues to send the record.
            CancelledError: the delivery was cancelled (concurrent.futures.CancelledError).
            BufferTimeoutError and other errors of `send`: the record did not get into the buffer.
        """
        self._wait(timeout)
        if self._error is not None:
            raise copy(self._error)  # a traceback on the original would refer to the caller's delivery
        assert self._delivery is not None
        return self._delivery.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the result. Return the error, or None if the record was delivered. For `timeout` and the errors that
        the wait can raise, see `result`."""
        self._wait(timeout)
        if self._error is not None:
            return copy(self._error)
        assert self._delivery is not None
        return self._delivery.exception()

    def _wait(self, timeout: float | None) -> None:
        if not self.done():
            check_may_block()
            if self._ended is None:
                ended = self._ended = Flag()
                self.add_done_callback(lambda _: ended.set())
            thread = self._sends.own_thread()
            if not wait_for(self._ended, timeout, thread) and not self.done():
                if not thread.is_alive:
                    raise ProducerClosed("the producer was closed before the record reached the buffer")
                raise TimeoutError(
                    f"the record has no result after {timeout:g} s; the producer keeps trying to send it"
                )
        self._is_seen = True
        if self._is_cancelled:
            raise CancelledError

    def add_done_callback(self, fn: Callable[[Delivery], object]) -> None:
        """Call `fn(delivery)` when the delivery is done, in the loop thread, which `fn` must not block.

        If the delivery is already done, `fn` is called immediately, in the calling thread."""
        if self.done() or not self._sends.own_thread().post(partial(self._watch, fn)):
            self._call_back(fn)

    def cancel(self) -> bool:
        """Cancel the delivery. The record is still sent. Return False if there is already a result."""
        thread = self._sends.own_thread()
        if self.done():
            return False
        if running_loop() is thread.loop:
            return self._cancel()
        cancelled: list[bool] = []
        answered = Flag()

        def cancel() -> None:
            cancelled.append(self._cancel())
            answered.set()

        return thread.post(cancel) and wait_for(answered, thread=thread) and cancelled[0]

    def _cancel(self) -> bool:
        if self.done():
            return False
        if self._delivery is not None:
            self._delivery.cancel()
        self._is_cancelled = True
        self._end()
        return True

    def __del__(self) -> None:
        if self._error is not None and not self._is_seen:
            self._sends.note_unretrieved(self._topic, self._error)

    def __repr__(self) -> str:
        what = "cancelled" if self._is_cancelled else "done" if self.done() else "pending"
        return f"<Delivery {self._topic} {what}>"


_Queued: TypeAlias = tuple[Delivery, Record]
_Lane: TypeAlias = deque[_Queued | asyncio.Future[None]]
"""The records of a topic that are waiting for room, and futures. A future is set when all records before it have left
the lane."""


def _settle(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
