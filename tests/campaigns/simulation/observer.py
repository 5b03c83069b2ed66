"""Watches the requests that a simulated producer writes, and records broken invariants of its numbering.

The oracle judges logs and results, where some mistakes rarely show: if a new epoch begins while a request of the old
one is in flight, this does harm only if that request arrives late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from aioproducer.network.connection import Connection
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records.batch import ProducerBatch
from aioproducer.sending.sender import Sender
from aioproducer.testing.embedded.transaction_metadata import (
    ProducerIdAndEpoch,
    TransactionalId,
    TransactionMetadata,
    TransactionRefused,
    TransactionStatus,
)
from tests.campaigns.simulation.history import History

NEW_EPOCH_TOO_EARLY = "a new epoch began too early"


@contextmanager
def observing(history: History) -> Iterator[None]:
    """Add broken invariants to the history's problems for the duration of the block."""
    under_way: dict[Any, list[ProducerBatch]] = {}
    """For each partition queue, the batches in requests that were written and have not ended, counted independently
    of the producer."""
    produce, answered = Sender._produce, Sender._answered

    def producing(
        self: Sender, connection: Connection, node_id: int, batches: list[ProducerBatch], now: float
    ) -> None:
        produce(self, connection, node_id, batches, now)
        most = self._config.max_in_flight_per_partition
        for batch in batches:
            others = under_way.setdefault(batch.queue, [])
            where = f"{batch.queue.topic}-{batch.queue.partition}"
            before = [other for other in others if other.identity != batch.identity]
            if before:
                history.problems.append(
                    f"{NEW_EPOCH_TOO_EARLY}: {where} gets a batch of {batch.identity} while one of "
                    f"{before[0].identity} is in flight"
                )
            others.append(batch)
            if len(others) > most:
                history.problems.append(f"{len(others)} batches in flight for {where}, the limit is {most}")

    def answering(self: Sender, connection: Connection, batches: list[ProducerBatch], *more: Any) -> None:
        for batch in batches:
            under_way[batch.queue].remove(batch)
        answered(self, connection, batches, *more)

    with (
        mock.patch.object(Sender, "_produce", producing),
        mock.patch.object(Sender, "_answered", answering),
        _observing_coordinators(history),
    ):
        yield


@contextmanager
def _observing_coordinators(history: History) -> Iterator[None]:
    """Record transactions that an older producer aborts by requesting the epoch after its own.

    Kafka checks that epoch only if no transaction is open (KIP-360). A producer that was fenced unnoticed detects it
    by an abort before the request; it can't detect that it is fenced after that abort."""
    has_aborted: set[ProducerIdAndEpoch] = set()
    """Producers whose last transaction end was an abort, either successful or with nothing to abort."""
    init_producer_id, end = TransactionalId.init_producer_id, TransactionalId.end

    def initializing(
        self: TransactionalId, expected: ProducerIdAndEpoch | None, **more: Any
    ) -> TransactionMetadata:
        before = self.metadata
        to = init_producer_id(self, expected, **more)
        if (
            before.state is TransactionStatus.ONGOING
            and expected not in (None, before.identity)
            and expected not in has_aborted
        ):
            history.aborted_successors.append(
                f"InitProducerId of {expected} aborted the open transaction of {before.identity}"
            )
        return to

    def ending(
        self: TransactionalId, producer_id: int, epoch: int, *, commit: bool, **more: Any
    ) -> TransactionMetadata:
        producer = ProducerIdAndEpoch(producer_id, epoch)
        try:
            to = end(self, producer_id, epoch, commit=commit, **more)
        except TransactionRefused as refused:
            if not commit and refused.code in (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE):
                has_aborted.add(producer)
            raise
        if commit:
            has_aborted.discard(producer)
        else:
            has_aborted.add(producer)
        return to

    with (
        mock.patch.object(TransactionalId, "init_producer_id", initializing),
        mock.patch.object(TransactionalId, "end", ending),
    ):
        yield
