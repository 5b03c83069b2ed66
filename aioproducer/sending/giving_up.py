"""Fails batches that will not be sent, or whose response is no longer awaited."""

from __future__ import annotations

from aioproducer.config import ProducerConfig
from aioproducer.errors import KafkaError, TransactionAbortedError
from aioproducer.network.brokers import Brokers
from aioproducer.network.metadata import Metadata
from aioproducer.network.request_stream import LATE_TIMER
from aioproducer.protocol.outcomes import Moment
from aioproducer.records._record_path import BatchState
from aioproducer.records.accumulator import NO_NODE, Accumulator
from aioproducer.records.batch import ProducerBatch
from aioproducer.sending.numbering import Numbering
from aioproducer.sending.produce_results import ProduceResults
from aioproducer.sending.producer_id import ProducerIdSource


class GivingUp:
    """Fails batches that got no response, each with a reason that the user can act on. Used only by the sender."""

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: Accumulator,
        brokers: Brokers,
        metadata: Metadata,
        producer_ids: ProducerIdSource,
        numbering: Numbering,
        results: ProduceResults,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._brokers = brokers
        self._metadata = metadata
        self._producer_ids = producer_ids
        self._numbering = numbering
        self._results = results
        self._waited_for_late_answers = False
        """True if the last call to `expire_overdue` gave some batches in flight one more pass."""

    def expire_overdue(self, now: float) -> bool:
        """Fail the batches whose delivery timeout has passed. Return True if some of them get one more pass.

        If the event loop was blocked, responses that arrived in time may still be unread in the sockets. That is why
        batches in flight get one more pass if their deadline is noticed late.
        """
        late: list[ProducerBatch] = []
        for batch in self._accumulator.expired(now):
            in_flight = batch.state is BatchState.IN_FLIGHT
            if in_flight and now - batch.deadline > LATE_TIMER and not self._waited_for_late_answers:
                late.append(batch)
            else:
                self._expire(batch, now)
        self._waited_for_late_answers = bool(late)
        return self._waited_for_late_answers

    def _expire(self, batch: ProducerBatch, now: float) -> None:
        """Handle a batch whose delivery timeout has passed."""
        if batch.state is BatchState.DONE:
            return  # it has already failed, together with an earlier batch
        if self._config.enable_endless_retries and self._numbering.end_if_for_old_topic(batch):
            return
        if batch.attempts == 0:
            batch.last_error, why = self._why_not_sent(batch.queue.node_id)
            reason = f"{why}; nothing was sent"
        else:
            reason = f"the last error was: {batch.last_error!r}" if batch.last_error else "no broker answered"
        why = f"delivery timed out: {reason}"
        in_flight = batch.state is BatchState.IN_FLIGHT
        if not self._results.end_at(batch, Moment.EXPIRED, why, in_flight=in_flight):
            self._accumulator.postpone(batch, now + self._config.delivery_timeout)

    def _why_not_sent(self, node_id: int) -> tuple[KafkaError | None, str]:
        if self._producer_ids.is_needed:
            error = self._producer_ids.last_error
            return error, f"no broker returned a producer id ({error or 'no broker has answered'})"
        error = self._metadata.last_error
        if error is not None:
            return error, f"the cluster can't be reached ({error})"
        if node_id == NO_NODE:
            return None, "the partition had no leader"
        error = self._brokers.last_error(node_id)
        return (
            error,
            f"broker {node_id} could not accept the batch ({error or 'busy, throttled, or still connecting'})",
        )

    def abort_all(self, reason: str, *, is_wanted: bool = False) -> None:
        """Fail all remaining batches. With `is_wanted`, the failures are neither logged nor counted as unretrieved."""
        for batch in list(self._accumulator.incomplete):
            if batch.state is BatchState.DONE:
                continue  # it has already failed, together with an earlier batch
            if batch.state is BatchState.IN_FLIGHT:
                batch.maybe_persisted = True
            else:
                self._accumulator.forget(batch)
            batch.was_given_up_on_request = is_wanted
            self._results.give_up(batch, reason)

    def abort_unsent(self, why: KafkaError | None) -> None:
        """Fail the batches that are not in flight, because their transaction cannot be committed (KIP-654)."""
        reason = str(why or "the transaction was aborted")
        for batch in list(self._accumulator.incomplete):
            if batch.state in (BatchState.OPEN, BatchState.CLOSED):
                self._accumulator.forget(batch)
                batch.last_error = batch.last_error or why
                batch.was_given_up_on_request = why is None
                self._results.give_up(batch, reason, TransactionAbortedError)

    def fail_unnumbered(self, error: KafkaError) -> None:
        """Fail the waiting batches that cannot be sent without a producer id. The next record requests an id again."""
        for batch in list(self._accumulator.incomplete):
            if batch.state in (BatchState.OPEN, BatchState.CLOSED) and not batch.is_numbered:
                batch.last_error = error
                self._accumulator.forget(batch)
                self._results.give_up(batch, str(error))
