"""Writes one task's rows: sends Arrow batches with a producer, awaits acknowledgements, and limits the memory used."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable

import pyarrow as pa

from aioproducer import KafkaError, Secret, SendManyError, TopicPartition
from aioproducer.blocking import Producer, Receipt
from aioproducer.spark.columns import arguments_of, by_topic
from aioproducer.spark.options import MissingTopicError, SinkError, SinkOptions
from aioproducer.spark.reports import TaskReport, Written
from aioproducer.spark.tuning import ArrowBatches

GATHERED = 4 << 20
"""Arrow batches are gathered up to this many bytes, then passed to the producer in one call. Every call
wakes the loop's thread, whose data has left the processor's cache by then, so a few large calls are faster than many
small ones."""
IN_FLIGHT = 64 << 20
"""The maximum size in bytes of Arrow batches with unacknowledged rows. One batch of any size is always allowed."""
MOST_PRODUCERS = 4
"""The maximum number of producers kept in a worker process, one for each combination of settings."""
CLOSING = 10.0
"""Timeout in seconds for closing a producer to make room for another one."""

_kept: dict[tuple[int, Secret], Producer] = {}
"""The producers for at_least_once, keyed by process (a worker may be forked) and settings. They are kept because Spark
reuses its workers."""


class TaskWriter:
    """Sends one task's rows. When `finish` returns, all of them are acknowledged. Cannot be used after an exception."""

    def __init__(self, producer: Producer, options: SinkOptions, task: int) -> None:
        self._producer = producer
        self._options = options
        self._task = task
        self._began = time.monotonic()
        self._before = producer.metrics()
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_size = 0
        self._pending: deque[tuple[Receipt, int]] = deque()
        self._in_flight = 0
        self._known: set[str] = set()
        """The topics that are known to exist."""
        self._rows = 0
        self._arrow_bytes = self._largest = 0
        self._written: dict[TopicPartition, Written] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows in a batch; wait while too many bytes are in flight.

        Raises:
            SinkError: a row in this batch or in an earlier one was not written.
        """
        size = batch.nbytes
        self._arrow_bytes += size
        self._largest = max(self._largest, size)
        self._gathered.append(batch)
        self._gathered_size += size
        if self._gathered_size >= GATHERED:
            self._send()

    def _send(self) -> None:
        """Put the gathered batches into the buffer."""
        gathered, self._gathered, self._gathered_size = self._gathered, [], 0
        for topic, rows in by_topic(gathered, self._options.topic):
            size = rows.nbytes
            while self._pending and (self._in_flight + size > IN_FLIGHT or self._pending[0][0].done()):
                self._settle()
            try:
                if topic not in self._known:
                    self._options.partitions_of(self._producer, topic)
                    self._known.add(topic)
                receipt = self._producer.send_many(topic, **arguments_of(rows))
            except MissingTopicError:
                raise
            except KafkaError as error:
                raise SinkError(f"topic {topic}: {error}") from error
            self._pending.append((receipt, size))
            self._in_flight += size

    def _settle(self) -> None:
        receipt, size = self._pending.popleft()
        try:
            receipt.result()
        except SendManyError as error:
            raise SinkError(str(error)) from error
        self._in_flight -= size
        self._rows += len(receipt)
        for partition, ranges in receipt.offsets.items():
            place = TopicPartition(receipt.topic, partition)
            before = self._written.get(place, Written(0, -1))
            count = sum(len(offsets) for offsets in ranges)
            self._written[place] = Written(before.rows + count, ranges[-1][-1])

    def finish(self) -> TaskReport:
        """Wait for all acknowledgements.

        Raises:
            SinkError: a row was not written.
        """
        if self._gathered:
            self._send()
        self._producer.flush()
        while self._pending:
            self._settle()
        after, before = self._producer.metrics(), self._before
        return TaskReport(
            self._task,
            self._rows,
            after.batch_bytes - before.batch_bytes,
            time.monotonic() - self._began,
            after.retries - before.retries,
            after.time_to_ack.p99,
            self._written,
            arrow=ArrowBatches(self._arrow_bytes, self._largest),
        )


def write_at_least_once(batches: Iterable[pa.RecordBatch], options: SinkOptions, task: int) -> TaskReport:
    """Write a task's rows with a producer of the worker process. On an error, close it and drop its unsent rows."""
    producer = _kept_producer(options)
    try:
        writer = TaskWriter(producer, options, task)
        for batch in batches:
            writer.write(batch)
        return writer.finish()
    except BaseException:
        _kept.pop(_key(options), None)
        producer.close(timeout=0)
        raise


def _key(options: SinkOptions) -> tuple[int, Secret]:
    # The key is a Secret: the settings contain passwords, and tracebacks may show _kept_producer()'s local variables.
    return os.getpid(), Secret(repr(sorted(options.kafka.items())))


def _kept_producer(options: SinkOptions) -> Producer:
    key = _key(options)
    producer = _kept.pop(key, None)
    if producer is None:
        mine = [other for other in _kept if other[0] == os.getpid()]
        while len(mine) >= MOST_PRODUCERS:
            _kept.pop(mine.pop(0)).close(timeout=CLOSING)
        producer = options.producer()
        producer.start()
    _kept[key] = producer  # moved to the end: the least recently used producer is closed first
    return producer
