"""Completes and compresses closed batches, in the event loop or in a thread.

Passing a batch to a thread and back costs more than compressing 8 KiB, and a compressing thread competes with a busy
loop for the GIL. Therefore one job in a thread compresses all waiting batches, one after the other. With one or two
processors, a thread would not have a processor to itself, so batches that compress quickly are compressed in the
loop, for up to about a millisecond per turn.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from aioproducer.records._record_path import BatchState
from aioproducer.records.batch import ProducerBatch

Payload: TypeAlias = bytes | memoryview

SMALL = 8 * 1024
"""The size in bytes up to which a batch is compressed in the loop rather than in a thread, if the codec is quick."""
MOST_IN_LOOP = 0.5
"""The maximum time in milliseconds for compressing one batch in the loop."""
MOST_IN_TURN = 1.0
"""The maximum time in milliseconds for compressing batches in one turn of the loop."""
TELL_AFTER = 1.0
"""The time in milliseconds after which a thread returns its finished batches, even if more are waiting. By then, the
finished batches fill a large request."""


class BatchCompressor:
    """Completes and compresses closed batches."""

    def __init__(
        self,
        config: ProducerConfig,
        loop: asyncio.AbstractEventLoop,
        on_compressed: Callable[[ProducerBatch], None],
        processors: int | None = None,
        executor: Executor | None = None,
        *,
        gives_way: bool = True,
    ) -> None:
        """Create a compressor without starting a thread.

        Args:
            config: the settings.
            loop: the producer's event loop.
            on_compressed: called for each batch that a thread has compressed.
            processors: the number of processors that this process may use; None to ask the system.
            executor: the executor that does the work; None for a new one.
            gives_way: whether the threads of a new executor have a lower priority than the loop's thread.
        """
        processors = processors or processor_count()
        self._log = config.log(__name__)
        self._codec = config.compression
        self.is_needed = self._codec is not Codec.NONE
        self._compress = compressor(config.compression, config.compression_level)
        self._loop = loop
        self._on_compressed = on_compressed
        self._threads = max(processors - 1, 1)
        self.executor = executor or DaemonThreads(
            self._threads, "aioproducer-compress", _give_way_to_the_loop if gives_way else None
        )
        # in the loop
        pace = bytes_per_millisecond(config.compression, config.compression_level)
        quick = int(MOST_IN_LOOP * pace)
        self._most_in_loop = quick if processors <= 2 else min(quick, SMALL)
        self._most_in_turn = int(MOST_IN_TURN * pace)
        self._in_this_turn = 0
        """The total size in bytes of the batches that were compressed in this turn of the loop."""
        self.turn_is_full = False
        """True once this turn of the loop has compressed as much as one turn may."""
        # shared with the threads, which take from `_waiting` and append to `_done`
        self._tell_after = int(TELL_AFTER * pace)
        self._waiting: deque[tuple[ProducerBatch, Payload]] = deque()
        self._done: deque[tuple[ProducerBatch, Payload | Exception]] = deque()
        self._jobs: set[asyncio.Future[None]] = set()

    def compress(self, batch: ProducerBatch) -> None:
        """Complete and compress a closed batch, now or in a thread. The batch must not be sent while it
        `is_being_compressed`."""
        if not self.compress_if_quick(batch):
            batch.is_being_compressed = True
            self._waiting.append((batch, batch.payload))
            self._start_job()

    def compress_if_quick(self, batch: ProducerBatch) -> bool:
        """Compress a closed batch in this turn of the loop if that is quick. Return True if nothing is left to do."""
        if not batch.is_whole:
            return False
        if self._codec is Codec.NONE:
            return True
        if batch.size > self._most_in_loop or (batch.size >= SMALL and self.turn_is_full):
            return False
        if not self._in_this_turn:
            self._loop.call_soon(self._next_turn)
        self._in_this_turn += batch.size
        self.turn_is_full = self._in_this_turn >= self._most_in_turn
        self._take_over(batch, self._completed_records(batch, batch.payload))
        return True

    async def close(self) -> None:
        """Stop the threads. A codec cannot be interrupted, so a thread that takes longer than LAST_WAIT ends after
        its current batch or with the process."""
        self._waiting.clear()
        self.executor.shutdown(wait=False, cancel_futures=True)
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=LAST_WAIT)

    def _next_turn(self) -> None:
        self._in_this_turn = 0
        self.turn_is_full = False

    # ------------------------------------------------------------------------------------------------- threads

    def _start_job(self) -> None:
        if len(self._jobs) >= self._threads:
            return
        try:
            job = self._loop.run_in_executor(self.executor, self._work)
        except RuntimeError as error:
            self._compress_waiting_now(error)
        else:
            self._jobs.add(job)
            job.add_done_callback(self._job_ended)

    def _work(self) -> None:
        """Compress waiting batches until none are left. Runs in a thread."""
        unreported = 0
        while self._waiting:
            try:
                batch, payload = self._waiting.popleft()
            except IndexError:
                return  # another thread took the last batch
            self._done.append((batch, self._completed_records(batch, payload)))
            unreported += len(payload)
            if unreported >= self._tell_after and self._waiting:
                unreported = 0
                self._loop.call_soon_threadsafe(self._take_done)

    def _job_ended(self, job: asyncio.Future[None]) -> None:
        self._jobs.discard(job)
        self._take_done()
        if job.cancelled():
            return  # the producer was closed
        if (error := job.exception()) is not None:
            self._compress_waiting_now(error)
        elif self._waiting:
            self._start_job()  # a batch arrived after the job's last check

    def _compress_waiting_now(self, error: BaseException) -> None:
        """Compress waiting batches in the loop, because a thread could not be started or has failed."""
        self._log.warning(
            "batches are compressed in the event loop, because compressing in a thread failed: %r", error
        )
        while self._waiting:
            batch, payload = self._waiting.popleft()
            self._take_over(batch, self._completed_records(batch, payload))
            if batch.state is not BatchState.DONE:
                self._on_compressed(batch)

    def _take_done(self) -> None:
        while self._done:
            batch, payload = self._done.popleft()
            self._take_over(batch, payload)
            if batch.state is not BatchState.DONE:
                self._on_compressed(batch)

    # ------------------------------------------------------------------------------------------- loop or thread

    def _completed_records(self, batch: ProducerBatch, payload: Payload) -> Payload | Exception:
        """Complete and compress the records, and return them or the error. May run in a thread while the loop ends
        the batch."""
        try:
            batch.complete_records()
            return payload if self._codec is Codec.NONE else self._compress(payload)
        except Exception as error:
            return error

    def _take_over(self, batch: ProducerBatch, payload: Payload | Exception) -> None:
        batch.is_being_compressed = False
        if not isinstance(payload, Exception):
            batch.use_compressed(self._codec, payload)
        elif batch.state is not BatchState.DONE:
            # The records themselves are intact and are sent uncompressed.
            self._log.warning("a batch for topic %s could not be compressed: %r", batch.queue.topic, payload)
            batch.complete_records()  # in case the thread failed before doing this


def processor_count() -> int:
    """Return the number of processors that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _give_way_to_the_loop() -> None:
    """Lower the priority of the calling thread, which compresses batches, below that of the loop. Measurements show a
    benefit if processors are scarce."""
    if sys.platform == "linux":
        with contextlib.suppress(
            OSError
        ):  # a sandbox may forbid this; the threads then run with normal priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
