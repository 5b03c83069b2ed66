"""Watches what a simulated producer writes, request by request, and notes broken invariants of its numbering.

The oracle judges logs and results. Some mistakes only rarely show there: a new epoch that begins while a request of the
old one is under way does harm only if that request arrives late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from aioproducer.network.connection import Connection
from aioproducer.records.batch import ProducerBatch
from aioproducer.sending.sender import Sender
from tests.campaigns.simulation.history import History

NEW_EPOCH_TOO_EARLY = "a new epoch began too early"


@contextmanager
def observing(history: History) -> Iterator[None]:
    """Note broken invariants in the history's problems while the block lasts."""
    under_way: dict[Any, list[ProducerBatch]] = {}
    """By partition queue: batches in requests that were written and have not ended. The producer's own account of them
    is not asked."""
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
                history.problems.append(f"{len(others)} batches in flight for {where}, at most {most} may be")

    def answering(self: Sender, connection: Connection, batches: list[ProducerBatch], *more: Any) -> None:
        for batch in batches:
            under_way[batch.queue].remove(batch)
        answered(self, connection, batches, *more)

    with (
        mock.patch.object(Sender, "_produce", producing),
        mock.patch.object(Sender, "_answered", answering),
    ):
        yield
