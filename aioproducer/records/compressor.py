"""Between closed and sealed: a batch is completed and compressed, in the loop or in a thread.

To hand a batch to a thread and back costs more than to compress 8 KiB, and a thread that compresses wants Python's lock
from a loop that is busy. So a thread takes whatever waits, one batch after the other; and with one or two processors,
where it has none to itself, what is quick is compressed in the loop: about a millisecond's worth in one turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeAlias

from aioproducer.concurrency.threads import LAST_WAIT, DaemonThreads
from aioproducer.config import ProducerConfig
from aioproducer.protocol.compression import Codec, bytes_per_millisecond, compressor
from aioproducer.records.batch import ProducerBatch

logger = logging.getLogger(__name__)

Payload: TypeAlias = bytes | memoryview

SMALL = 8 * 1024
"""Bytes of a batch that are never worth a thread, where the codec is quick."""
MOST_IN_LOOP = 0.5
"""Milliseconds for one batch."""
MOST_IN_TURN = 1.0
"""Milliseconds for all batches of one turn of the loop."""
TELL_AFTER = 1.0
"""Milliseconds of work after which a thread hands over what it has, though more waits: enough for a large request."""


class Packing:
    """Completes and compresses what is closed. `on_packed` is called for what a thread has done."""

    def __init__(
        self,
        config: ProducerConfig,
        loop: asyncio.AbstractEventLoop,
        processors: int | None = None,
        executor: Executor | None = None,
        *,
        gives_way: bool = True,
    ) -> None:
        """Nothing is started.

        Args:
            config: the settings.
            loop: the producer's.
            processors: how many there are for this process; None to ask the system.
            executor: whose threads do the work; None for own ones.
            gives_way: whether own threads come after the loop, which somebody else may wait for.
        """
        processors = processors or processor_count()
        self._codec = config.compression
        self._compress = compressor(config.compression, config.compression_level)
        self._loop = loop
        self._threads = max(processors - 1, 1)
        self.executor = executor or DaemonThreads(
            self._threads, "aioproducer-compress", _give_way_to_the_loop if gives_way else None
        )
        self.on_packed: Callable[[ProducerBatch], None] = _nobody
        # in the loop
        pace = bytes_per_millisecond(config.compression, config.compression_level)
        quick = int(MOST_IN_LOOP * pace)
        self._most_in_loop = quick if processors <= 2 else min(quick, SMALL)
        self._most_in_turn = int(MOST_IN_TURN * pace)
        self._in_this_turn = 0
        """Bytes of batches."""
        # in threads, which take from the one and add to the other
        self._tell_after = int(TELL_AFTER * pace)
        self._waiting: deque[tuple[ProducerBatch, Payload]] = deque()
        self._done: deque[tuple[ProducerBatch, Payload | Exception]] = deque()
        self._jobs: set[asyncio.Future[None]] = set()

    @property
    def turn_is_full(self) -> bool:
        """Whether this turn of the loop has compressed what one may."""
        return self._in_this_turn >= self._most_in_turn

    def pack(self, batch: ProducerBatch) -> None:
        """Complete and compress a closed batch, now or soon; it must not be sent while `is_packing`."""
        if not self.pack_if_quick(batch):
            batch.is_packing = True
            self._waiting.append((batch, batch.payload))
            self._start_job()

    def pack_if_quick(self, batch: ProducerBatch) -> bool:
        """Compress a closed batch in this turn of the loop, if that is quick; True if nothing is left to do."""
        if not batch.is_whole:
            return False
        if self._codec is Codec.NONE:
            return True
        if batch.size > self._most_in_loop or (batch.size >= SMALL and self.turn_is_full):
            return False
        if not self._in_this_turn:
            self._loop.call_soon(self._next_turn)
        self._in_this_turn += batch.size
        self._take_over(batch, self._packed(batch, batch.payload))
        return True

    async def close(self) -> None:
        """End the threads. What a codec has begun can't be interrupted: a thread that takes longer than a moment ends
        with its batch, or with the process."""
        self._waiting.clear()
        self.executor.shutdown(wait=False, cancel_futures=True)
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=LAST_WAIT)

    def _next_turn(self) -> None:
        self._in_this_turn = 0

    # ------------------------------------------------------------------------------------------------- threads

    def _start_job(self) -> None:
        if len(self._jobs) >= self._threads:
            return
        try:
            job = self._loop.run_in_executor(self.executor, self._work)
        except RuntimeError as error:
            self._pack_waiting_now(error)
        else:
            self._jobs.add(job)
            job.add_done_callback(self._job_ended)

    def _work(self) -> None:
        """In a thread: pack what waits, as long as something does."""
        untold = 0
        while self._waiting:
            try:
                batch, payload = self._waiting.popleft()
            except IndexError:
                return  # another thread was faster
            self._done.append((batch, self._packed(batch, payload)))
            untold += len(payload)
            if untold >= self._tell_after and self._waiting:
                untold = 0
                self._loop.call_soon_threadsafe(self._take_done)

    def _job_ended(self, job: asyncio.Future[None]) -> None:
        self._jobs.discard(job)
        self._take_done()
        if job.cancelled():
            return  # the producer was closed
        if (error := job.exception()) is not None:
            self._pack_waiting_now(error)
        elif self._waiting:
            self._start_job()  # it came when the job had looked for the last time

    def _pack_waiting_now(self, error: BaseException) -> None:
        """No thread can be started, or none goes on."""
        logger.warning("batches are compressed in the event loop, since no thread does it: %r", error)
        while self._waiting:
            batch, payload = self._waiting.popleft()
            self._take_over(batch, self._packed(batch, payload))
            if not batch.is_done:
                self.on_packed(batch)

    def _take_done(self) -> None:
        while self._done:
            batch, payload = self._done.popleft()
            self._take_over(batch, payload)
            if not batch.is_done:
                self.on_packed(batch)

    # ------------------------------------------------------------------------------------------- either of both

    def _packed(self, batch: ProducerBatch, payload: Payload) -> Payload | Exception:
        """The batch's records, whole and compressed. In a thread, while the loop may end the batch."""
        try:
            batch.complete_records()
            return payload if self._codec is Codec.NONE else self._compress(payload)
        except Exception as error:
            return error

    def _take_over(self, batch: ProducerBatch, payload: Payload | Exception) -> None:
        batch.is_packing = False
        if not isinstance(payload, Exception):
            batch.compressed(self._codec, payload)
        elif not batch.is_done:
            # The records themselves are fine: they go as they are.
            logger.warning("a batch of %s could not be compressed: %r", batch.queue.topic, payload)
            batch.complete_records()  # should the thread not have come so far


def _nobody(batch: ProducerBatch) -> None:
    """Before the accumulator is there."""


def processor_count() -> int:
    """How many processors this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _give_way_to_the_loop() -> None:
    """Compressing threads come after the event loop where there are fewer processors than work (measured)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox may forbid it; then they run like all others
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
