"""Sends every flight with `await producer.send()` and awaits every delivery: the core of the demo."""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from aioproducer import Delivery, KafkaError, Outcome, Producer
from aioproducer.metrics import MetricsSnapshot
from flights.data import Flight
from flights.interrupt import Interrupt
from flights.progress import Progress

_REFRESH = 0.2
"""Seconds between updates of the progress display."""
_SEND_GRACE = 1.0
"""Seconds allowed for a waiting `send` after Ctrl-C."""
_DELIVERY_GRACE = 10.0
"""Seconds allowed for buffered records after Ctrl-C."""


class State(IntEnum):
    """The outcome of a flight's record."""

    NOT_SENT = 0
    DELIVERED = 1
    FAILED = 2
    """Provably not in the log."""
    UNKNOWN = 3
    """May be in the log."""


@dataclass(slots=True)
class Sent:
    """The outcome of each flight, by row."""

    flights: Sequence[Flight]
    states: bytearray = field(init=False)
    partitions: array[int] = field(init=False)
    offsets: array[int] = field(init=False)
    """The offset in the acknowledgement, or -1."""
    errors: Counter[str] = field(default_factory=Counter)
    """The number of errors, by exception class name."""
    examples: dict[str, str] = field(default_factory=dict)
    """The text of the first error of each kind."""

    def __post_init__(self) -> None:
        self.states = bytearray(len(self.flights))
        self.partitions = array("i", [-1]) * len(self.flights)
        self.offsets = array("q", [-1]) * len(self.flights)

    def count(self, state: State) -> int:
        return self.states.count(state)

    def collect(self, deliveries: Sequence[Delivery]) -> None:
        """Store the results of the first flights' deliveries, which must all be done."""
        for row, delivery in enumerate(deliveries):
            error = delivery.exception()
            if error is None:
                metadata = delivery.result()
                self.states[row] = State.DELIVERED
                self.partitions[row] = metadata.partition
                self.offsets[row] = -1 if metadata.offset is None else metadata.offset
            else:
                self.failed(row, error)

    def failed(self, row: int, error: BaseException) -> None:
        is_out = getattr(error, "outcome", Outcome.UNKNOWN) is Outcome.NOT_PERSISTED
        self.states[row] = State.FAILED if is_out else State.UNKNOWN
        name = type(error).__name__
        self.errors[name] += 1
        self.examples.setdefault(name, str(error))


@dataclass(frozen=True, slots=True)
class Measurement:
    """Elapsed and CPU time from before the first `send` until after the last delivery, and the metrics at the end."""

    seconds: float
    cpu_seconds: float
    """The CPU time of all threads of this process."""
    metrics: MetricsSnapshot
    compression: str


async def send_flights(
    producer: Producer, topic: str, flights: Sequence[Flight], interrupt: Interrupt
) -> tuple[Sent, Measurement]:
    """Send all flights in order, which keeps the order per key, and wait for all deliveries.

    Ctrl-C stops sending: records in the buffer are still delivered, for at most `_DELIVERY_GRACE` seconds.
    The producer must have been started and must know the topic. send_flights() closes it.
    """
    sent = Sent(flights)
    deliveries: list[Delivery] = []
    mean = sum(flight.size for flight in flights) / max(len(flights), 1)
    with Progress("sending", len(flights), bytes_per_record=mean) as progress:
        showing = asyncio.create_task(_show(producer, progress))
        wall, cpu = time.perf_counter(), time.process_time()
        await interrupt.allow(_send_each(producer, topic, sent, deliveries, interrupt), grace=_SEND_GRACE)
        settling = asyncio.create_task(_settle(deliveries))
        # Only the waiting is limited: cancelling the task would cancel the delivery that it awaits.
        await interrupt.allow(asyncio.wait({settling}), grace=_DELIVERY_GRACE)
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        showing.cancel()
        await asyncio.wait({showing})
        metrics = producer.metrics()
        progress.show(metrics.records_acked)
    await producer.close(timeout=0 if interrupt.is_asked else None)
    await settling  # close() settles every delivery
    sent.collect(deliveries)
    return sent, Measurement(seconds, cpu_seconds, metrics, producer.config.compression.name.lower())


async def _send_each(
    producer: Producer, topic: str, sent: Sent, deliveries: list[Delivery], interrupt: Interrupt
) -> None:
    """Send one record per flight. Stop at the first error, so that no record overtakes the failed one."""
    try:
        for key, value, timestamp_ms, headers in sent.flights:
            if interrupt.is_asked:
                break
            deliveries.append(
                await producer.send(topic, value, key=key, timestamp_ms=timestamp_ms, headers=headers)
            )
    except KafkaError as error:
        sent.failed(len(deliveries), error)
    except asyncio.CancelledError:
        # Cancelled after Ctrl-C: this record may or may not be in the buffer.
        sent.states[len(deliveries)] = State.UNKNOWN
        raise


async def _settle(deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:
        with contextlib.suppress(KafkaError):  # collect() counts the errors
            await delivery


async def _show(producer: Producer, progress: Progress) -> None:
    while True:
        metrics = producer.metrics()
        progress.show(metrics.records_acked, f"{metrics.in_flight} in flight")
        await asyncio.sleep(_REFRESH)
