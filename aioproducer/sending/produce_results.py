"""Applies a Produce response, or the lack of one, to each batch of the request.

outcomes.py decides on the action; this module completes, resends, splits or fails the batch. The sender passes
the responses to this module, which neither awaits nor writes to a socket."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import ClassVar

from aioproducer.cluster import LeaderHint
from aioproducer.core import Core
from aioproducer.errors import (
    BrokerError,
    DeliveryError,
    DeliveryTimeoutError,
    ForeignPartitionError,
    MissingPartitionError,
    ProtocolError,
    escaped,
)
from aioproducer.network.backoff import FAST_RETRY, backoff, exponential
from aioproducer.network.brokers import Brokers
from aioproducer.network.metadata import Metadata
from aioproducer.observe.hooks import RetryEvent
from aioproducer.observe.retries import Retries
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode, error_name
from aioproducer.protocol.messages import ProduceResponse
from aioproducer.protocol.outcomes import (
    SENDS_AGAIN,
    Action,
    Condition,
    Moment,
    decide,
    decide_failure,
    decide_moment,
    depends_on,
    doubts_the_log,
    failure_of,
    reinit_error,
)
from aioproducer.protocol.produce import Appended
from aioproducer.records._record_path import BatchState
from aioproducer.records.accumulator import NO_NODE, Accumulator
from aioproducer.records.batch import NAMED, ProducerBatch
from aioproducer.records.idempotence import Idempotence, sequence_after
from aioproducer.sending.data_loss import LossWatch
from aioproducer.sending.refusals import PartitionAnswer, error_of, message_of, reason_of
from aioproducer.transactions.state import Transaction, abortable, reinit
from aioproducer.types import Outcome

SUCCESS = int(ErrorCode.NONE)
"""The error code of each batch in a response that reports only successes."""
_STORED = frozenset({Action.SUCCEED, Action.DUPLICATE})
NOT_VERIFIED = "Unable to verify the partition has been added to the transaction"
"""The beginning of the message in a NOT_ENOUGH_REPLICAS error whose cause is the transaction, not a lack of
replicas."""


class ProduceResults:
    """Completes or fails batches, or puts them back into the queue. Used only by the sender."""

    def __init__(
        self,
        core: Core,
        accumulator: Accumulator,
        brokers: Brokers,
        metadata: Metadata,
        idempotence: Idempotence,
        transaction: Transaction,
    ) -> None:
        self._config = core.config
        self._log = core.config.log(__name__)
        self._loop = core.loop
        self._accumulator = accumulator
        self._brokers = brokers
        self._metadata = metadata
        self._idempotence = idempotence
        self._transaction = transaction
        self._metrics = core.metrics
        self._random = core.random
        self._hooks = core.hooks
        self.losses = LossWatch(core.config, core.metrics, core.hooks)
        self._retries = Retries(self._log)
        self._is_ending_behind = False
        self._doubted: list[tuple[str, int]] = []
        """Partitions in the current response whose broker is not the leader, while no other leader is known."""
        self._completes_successes = decide(ApiKey.PRODUCE, SUCCESS).action is Action.SUCCEED
        """True if the error table's action for a plain success is to complete the batch. The action is looked up only
        once."""

    def apply_success(self, batches: list[ProducerBatch], response: Appended, now: float) -> None:
        """Apply a response that reports success for each batch in a request, and nothing else."""
        is_simple_success = self._completes_successes and self._transaction.role.is_only_writer
        for number, base_offset, log_append_time, log_start_offset in response.places:
            batch = batches[number]
            if is_simple_success:
                self.complete(batch, now, base_offset, log_append_time, log_start_offset)
                continue
            answer = ProduceResponse.PartitionProduceResponse(
                index=batch.queue.partition,
                base_offset=base_offset,
                log_append_time_ms=log_append_time,
                log_start_offset=log_start_offset,
            )
            self._partition_answered(batch, answer, ProduceResponse(), now, NAMED)

    def apply_response(
        self,
        node_id: int,
        batches: list[ProducerBatch],
        names: dict[int, str],
        addressed: dict[str, int],
        response: ProduceResponse,
        now: float,
    ) -> None:
        """Apply a broker's response, which must contain each partition in the request and no other.

        Args:
            node_id: the broker.
            batches: the batches in the request.
            names: the topic names by topic id.
            addressed: the id by which the request addressed each topic, by name; NAMED if it used the name.
            response: the broker's response.
            now: the loop's time.
        """
        expected = {(batch.queue.topic, batch.queue.partition): batch for batch in batches}
        if hints := list(leader_hints(response, names, expected)):
            self._metadata.apply_leader_hints(hints, response.node_endpoints)
        violation: ProtocolError | None = None
        for topic in response.responses:
            name = topic.name or names.get(topic.topic_id.int, "")
            for partition in topic.partition_responses:
                batch = expected.pop((name, partition.index), None)
                if batch is None:
                    violation = ForeignPartitionError(
                        f"broker {node_id} answered for partition {escaped(name)}-{partition.index}, "
                        "which was not in the request"
                    )
                else:
                    self._partition_answered(batch, partition, response, now, addressed[name])
        if self._doubted:
            doubted, self._doubted = self._doubted, []
            self._metadata.doubt_leaders(doubted)
        if expected:
            missing = "a partition" if len(expected) == 1 else f"{len(expected)} partitions"
            violation = MissingPartitionError(f"broker {node_id} did not answer for {missing} in the request")
        if violation is not None:
            self._brokers.disconnect(node_id, violation)
            for batch in expected.values():
                self.apply_failure(batch, violation, now, addressed[batch.queue.topic])

    def _partition_answered(
        self,
        batch: ProducerBatch,
        answer: ProduceResponse.PartitionProduceResponse,
        response: ProduceResponse,
        now: float,
        topic_id: int,
    ) -> None:
        is_simple_success = not answer.error_code and self._transaction.role.is_only_writer
        conditions = () if is_simple_success else partial(self._conditions, batch, answer)
        row = decide(ApiKey.PRODUCE, answer.error_code, conditions)
        said = PartitionAnswer(batch, answer, response, row.action, now, batch.maybe_persisted)
        if row.action not in _STORED:
            self._note_error(said, topic_id if row.outcome is Outcome.UNKNOWN else None)
            is_sent_again = row.action in SENDS_AGAIN
            if batch.state is BatchState.DONE or (is_sent_again and self._end_if_due(batch)):
                return  # the batch expired while in flight, or fails now instead of being sent again
        self.DO[row.action](self, said)

    def _note_error(self, said: PartitionAnswer, doubted_topic_id: int | None) -> None:
        """Store the error in the batch, and count it.

        Args:
            said: the answer for this batch.
            doubted_topic_id: the id by which the request addressed the topic, if the records may be in its log.
        """
        batch, answer = said.batch, said.answer
        name = error_name(answer.error_code)
        self._metrics.count_error(name)
        batch.last_error = BrokerError(f"{name}{message_of(answer)}", code=answer.error_code, name=name)
        batch.count_refusal(answer.error_code)
        if batch.state is BatchState.DONE:
            return
        if doubted_topic_id is not None:
            batch.doubt(doubted_topic_id)
        if said.action is not Action.HOLD and doubts_the_log(answer.error_code):
            self.losses.lost_track(batch, said.refusal)

    def _conditions(
        self, batch: ProducerBatch, answer: ProduceResponse.PartitionProduceResponse
    ) -> set[Condition]:
        """Return which conditions in the error table are met by an answer that is not a plain success."""
        queue = batch.queue
        identity = batch.identity
        earlier = [*queue.in_flight, *queue.batches]
        is_not_first = any(other.is_numbered and other.order < batch.order for other in earlier)
        in_transaction = identity is not None and identity.is_transactional
        earlier_refusals = batch.refusals.get(answer.error_code, 0)
        holds = {
            Condition.NOT_IDEMPOTENT: identity is None,
            Condition.NOT_FIRST: is_not_first,
            Condition.IN_DOUBT: batch.maybe_persisted,
            Condition.STALE: identity is not None and identity != self._idempotence.identity,
            Condition.GAPLESS: self._config.enable_gapless_order,
            Condition.DAMAGED: depends_on(ApiKey.PRODUCE, answer.error_code, Condition.DAMAGED)
            and not batch.is_intact(),
            Condition.SECOND_TIME: earlier_refusals >= 1,
            Condition.THIRD_TIME: earlier_refusals >= 2,
            Condition.SEVERAL_RECORDS: batch.record_count > 1,
            Condition.RECORD_ERRORS: 0 < len(self._named(batch, answer)) < batch.record_count,
            Condition.VERIFICATION: (answer.error_message or "").startswith(NOT_VERIFIED),
            Condition.REPETITION: self._is_repetition(batch, answer),
            Condition.TRANSACTION: in_transaction,
            Condition.V1: in_transaction and not self._transaction.is_v2,
            Condition.V2: in_transaction and self._transaction.is_v2,
        }
        return {condition for condition, is_so in holds.items() if is_so}

    def _is_repetition(self, batch: ProducerBatch, answer: ProduceResponse.PartitionProduceResponse) -> bool:
        """Return whether a participant's first batch repeats one that was already in the log.

        The batch in the log may come from another producer or from an earlier attempt; the broker's answer is the same
        in both cases.
        """
        sequence = batch.queue.sequence
        if sequence is None or not self._transaction.role.is_repetition(
            has_time=answer.log_append_time_ms >= 0, has_error=bool(answer.error_code)
        ):
            return False
        return sequence.confirmed_on is None or sequence.confirmed_on[0] != batch.identity

    def _has_moved(self, batch: ProducerBatch) -> bool:
        """Return whether the known leader is now a broker other than the one that the batch was sent to.

        If not, request new metadata once the whole response has been applied.
        """
        queue = batch.queue
        known = self._metadata.cluster.partition(queue.topic, queue.partition)
        if known is not None and known.leader not in (NO_NODE, batch.broker):
            return True
        self._doubted.append((queue.topic, queue.partition))
        return False

    # ------------------------------------------------------------------------------ one method for each action

    def _stored(self, said: PartitionAnswer) -> None:
        answer = said.answer
        self.complete(
            said.batch, said.now, answer.base_offset, answer.log_append_time_ms, answer.log_start_offset
        )

    def _stored_before(self, said: PartitionAnswer) -> None:
        answer = said.answer
        self.complete(said.batch, said.now, -1, answer.log_append_time_ms, answer.log_start_offset)

    def _fail(self, said: PartitionAnswer) -> None:
        batch, answer = said.batch, said.answer
        batch.record_errors = {**self._named(batch, answer), **(batch.record_errors or {})} or None
        requires_reinit = said.action is Action.REINIT
        self.give_up(batch, said.refusal, requires_reinit=requires_reinit, code=answer.error_code)

    def _retry(self, said: PartitionAnswer) -> None:
        self._send_later(said.batch, said.now)

    def _refresh(self, said: PartitionAnswer) -> None:
        if self._has_moved(said.batch):
            said.batch.mark_returned()
            self._accumulator.requeue(said.batch, said.now)
        else:
            self._send_later(said.batch, said.now)

    def _renegotiate(self, said: PartitionAnswer) -> None:
        batch = said.batch
        self._brokers.renegotiate(NO_NODE if batch.broker is None else batch.broker)
        self._send_later(
            batch, said.now, f"{said.refusal}; the broker is asked for its supported versions again"
        )

    def _retry_soon(self, said: PartitionAnswer) -> None:
        batch = said.batch
        batch.mark_returned()
        # The pause is fully jittered, because the broker verifies one partition of a transactional id at a time
        # (AddPartitionsToTxnManager).
        longest = exponential(*FAST_RETRY, batch.attempts - 1)
        self._accumulator.requeue(batch, said.now + self._random.uniform(0, longest))

    def _hold(self, said: PartitionAnswer) -> None:
        said.batch.mark_returned()
        self._accumulator.requeue(said.batch, said.now)

    def _renumber(self, said: PartitionAnswer) -> None:
        self._lose_numbers(said.batch)
        self._send_later(said.batch, said.now, f"{said.refusal}; the partition uses a new producer epoch")

    def _get_new_producer_id(self, said: PartitionAnswer) -> None:
        batch = said.batch
        if batch.identity is not None:
            self._idempotence.discard(batch.identity)
        self._lose_numbers(batch)
        why = (
            f"{said.refusal}: another producer uses the same producer id, so this producer requests a new one"
        )
        self._send_later(batch, said.now, why)

    def _split(self, said: PartitionAnswer) -> None:
        """Split a batch that is too large for the broker (KIP-126).

        The records keep their sequence numbers, if any. The two halves are sent one at a time.
        """
        batch = said.batch
        middle = batch.original_index(batch.record_count // 2)
        end = batch.record_count + len(batch.withdrawn)
        first, second = batch.part(self._loop, 0, middle, {}), batch.part(self._loop, middle, end, {})
        if batch.identity is not None:
            first.number(batch.identity, batch.first_sequence)
            second.number(batch.identity, sequence_after(batch.first_sequence, first.record_count))
        self._log.info(
            "a batch of %d bytes is too large for broker %s and is sent in two halves (%s-%d)",
            batch.wire_size,
            batch.broker,
            batch.queue.topic,
            batch.queue.partition,
        )
        self._metrics.splits += 1
        self._accumulator.replace(batch, [(0, first), (middle, second)], said.now)

    def _resend_innocent(self, said: PartitionAnswer) -> None:
        """Fail the records that the broker named, and send the others again without them (KIP-467)."""
        batch = said.batch
        culprits = self._named(batch, said.answer)
        self._log.warning(
            "%s (%d of %d records); the others are sent again",
            said.refusal,
            len(culprits),
            batch.record_count,
        )
        self._lose_numbers(batch)
        rest = batch.part(self._loop, 0, batch.record_count + len(batch.withdrawn), dict(culprits))
        self._accumulator.replace(batch, [(0, rest)], said.now)
        self._count_not_delivered(batch, len(culprits))

    DO: ClassVar[Mapping[Action, Callable[[ProduceResults, PartitionAnswer], None]]] = MappingProxyType(
        {
            Action.SUCCEED: _stored,
            Action.DUPLICATE: _stored_before,
            Action.FAIL: _fail,
            Action.DAMAGED: _fail,
            Action.ABORT: _fail,
            Action.REINIT: _fail,
            Action.RETRY: _retry,
            Action.REFRESH: _refresh,
            Action.RENEGOTIATE: _renegotiate,
            Action.RETRY_SOON: _retry_soon,
            Action.HOLD: _hold,
            Action.RENUMBER: _renumber,
            Action.NEW_PRODUCER_ID: _get_new_producer_id,
            Action.SPLIT: _split,
            Action.RESEND_INNOCENT: _resend_innocent,
        }
    )
    """The method for each action that the error table can prescribe for a Produce response."""

    # -------------------------------------------------------------------------------------------- no answer

    def apply_failure(self, batch: ProducerBatch, error: BaseException, now: float, topic_id: int) -> None:
        """Handle a batch that got no usable response: the connection was lost, or the response was late or invalid."""
        self._metrics.count_error(type(error).__name__)
        batch.last_error = error
        if batch.state is BatchState.DONE:
            return
        failure = failure_of(error)
        row = decide_failure(failure, {Condition.ACKS_0} if self._config.acks == 0 else ())
        if row.outcome is Outcome.UNKNOWN:
            batch.doubt(topic_id)
            # With transactions v1, an attempt that the broker processes late could affect the next transaction.
            self._transaction.epoch_is_spent = True
        if row.action is Action.FAIL:
            # With acks=0, the outcome cannot be determined, and sending the batch again could create a duplicate.
            # Without a common version, nothing was written, and another attempt would fail in the same way.
            self.give_up(batch, f"{failure.value}: {error}")
            return
        self._metadata.request_update()
        if not self._end_if_due(batch):
            self._send_later(batch, now)

    # ------------------------------------------------------------------------------------ without an answer

    def end_at(self, batch: ProducerBatch, moment: Moment, why: str = "", *, in_flight: bool) -> bool:
        """Fail a batch because of `moment`. Return False if the error table says to keep the batch."""
        is_endless = self._config.enable_endless_retries
        holds = {
            Condition.IN_FLIGHT: in_flight,
            # Endless retries also apply to a batch that may be in the log of a topic that has since been re-created.
            Condition.IN_DOUBT: batch.maybe_persisted or (is_endless and batch.outcome is Outcome.UNKNOWN),
            Condition.ENDLESS: is_endless,
        }
        row = decide_moment(moment, {condition for condition, is_so in holds.items() if is_so})
        if row.action is Action.KEEP:
            batch.moments = tuple({*batch.moments, moment})
            return False
        batch.maybe_persisted |= row.outcome is Outcome.UNKNOWN
        if not in_flight:
            self._accumulator.forget(batch)
        kind = DeliveryTimeoutError if moment is Moment.EXPIRED else DeliveryError
        self.give_up(batch, why or reason_of(batch, moment), kind)
        return True

    def _end_if_due(self, batch: ProducerBatch) -> bool:
        """Fail a batch instead of sending it again, if an event that ends it occurred while it was in flight. Return
        whether it failed."""
        moments, batch.moments = batch.moments, ()
        return any(self.end_at(batch, moment, in_flight=False) for moment in moments)

    def _end_behind(self, failed: ProducerBatch) -> None:
        """With enable_gapless_order, also fail the batches behind a failed one, before any caller sees a result."""
        if not self._config.enable_gapless_order or self._is_ending_behind:
            return
        self._is_ending_behind = True
        try:
            for batch in self._accumulator.behind(failed):
                if batch.state is BatchState.DONE:
                    continue  # the batch has already failed, but its response is still awaited
                self.end_at(batch, Moment.BEHIND, in_flight=batch.state is BatchState.IN_FLIGHT)
        finally:
            self._is_ending_behind = False

    # ------------------------------------------------------------------------ completing and failing batches

    def complete(
        self,
        batch: ProducerBatch,
        now: float,
        base_offset: int = -1,
        log_append_time: int = -1,
        log_start_offset: int = -1,
    ) -> None:
        """Complete a batch whose records are in the log or, with acks=0, were written to the connection."""
        sequence = batch.queue.sequence
        if batch.identity is not None and sequence is not None:
            self._idempotence.note_acknowledged(sequence, batch.identity, batch.broker or 0)
        if base_offset >= 0:
            self.losses.note_acknowledged(batch, base_offset, now)
        if self._retries.is_disturbed:
            self._retries.note_accepted(batch.queue.topic, batch.queue.partition, now)
        if batch.state is BatchState.DONE:
            return  # the batch expired while in flight, with an unknown outcome
        metrics = self._metrics
        batch.is_counted = True
        metrics.records_acked += batch.record_count
        metrics.time_to_ack.add(now - batch.created, batch.record_count)
        topic = metrics.topics.get(batch.queue.topic) or metrics.topic(batch.queue.topic)
        topic.records_acked += batch.record_count
        topic.last_ack = now
        batch.succeed(base_offset, log_append_time, log_start_offset)
        self._accumulator.release(batch)
        if self._hooks.on_batch:
            self._hooks.batch_ended(batch, batch.record_count, now, base_offset)

    def _send_later(self, batch: ProducerBatch, now: float, why: str = "") -> None:
        """Send a batch again after the back-off. In the log line, `why` replaces the last error."""
        batch.mark_returned()
        pause = self._backoff(batch)
        self._accumulator.requeue(batch, now + pause)
        queue, error = batch.queue, batch.last_error
        name = error.name if isinstance(error, BrokerError) else type(error).__name__
        self._retries.note(queue.topic, queue.partition, name, why or error, pause, now)
        if self._hooks.on_retry:
            event = RetryEvent(
                self._hooks.client_id,
                queue.topic,
                queue.partition,
                batch.live_count,
                batch.attempts,
                pause,
                error,
            )
            self._hooks.tell(self._hooks.on_retry, event)

    def _backoff(self, batch: ProducerBatch) -> float:
        config = self._config
        return backoff(config.retry_backoff, config.retry_backoff_max, batch.attempts - 1, self._random)

    def _lose_numbers(self, batch: ProducerBatch) -> None:
        """Drop the sequence numbers of a batch that is provably not in the log. This leaves a gap before later
        batches."""
        if batch.identity is not None and batch.queue.sequence is not None:
            self._idempotence.note_given_up(batch.queue.sequence, batch.identity)
            batch.number(None, -1)

    def _named(
        self, batch: ProducerBatch, answer: ProduceResponse.PartitionProduceResponse
    ) -> dict[int, BaseException]:
        """Return the errors for the records that the broker named, by index in the batch."""
        errors: dict[int, BaseException] = {}
        for entry in answer.record_errors or ():
            if 0 <= entry.batch_index < batch.record_count:
                text = escaped(entry.batch_index_error_message or answer.error_message)
                name = error_name(answer.error_code)
                errors.setdefault(
                    batch.original_index(entry.batch_index),
                    self._error(batch, f"the broker rejected this record with {name}: {text}", count=1),
                )
        return errors

    def give_up(
        self,
        batch: ProducerBatch,
        reason: str,
        kind: type[DeliveryError] = DeliveryError,
        *,
        requires_reinit: bool = False,
        code: int = 0,
    ) -> None:
        """Fail the records in a batch; their transaction, if any, can no longer be committed."""
        if batch.identity is not None and batch.queue.sequence is not None:
            self._idempotence.note_given_up(batch.queue.sequence, batch.identity)
            self._transaction.epoch_is_spent = True
        error = self._error(batch, reason, kind, requires_reinit=requires_reinit)
        count = batch.live_count
        batch.is_counted = True
        self._count_not_delivered(batch, count)
        if count:
            self._metrics.time_to_failure.add(self._loop.time() - batch.created, count)
        if self._transaction.is_used and batch.identity in (None, self._idempotence.identity):
            if requires_reinit:
                self._transaction.require_reinit(reinit(self._transaction, reinit_error(code), reason))
            else:
                self._transaction.require_abort(abortable(self._transaction, error))
        batch.give_up(error)
        self._accumulator.release(batch)
        if self._hooks.on_batch:
            self._hooks.batch_ended(batch, count, self._loop.time(), -1, error)
        self._end_behind(batch)

    def _count_not_delivered(self, batch: ProducerBatch, count: int) -> None:
        """Count failed records in a batch under the batch's outcome."""
        topic = self._metrics.topic(batch.queue.topic)
        if batch.outcome is Outcome.UNKNOWN:
            self._metrics.records_unknown += count
            topic.records_unknown += count
        else:
            self._metrics.records_failed += count
            topic.records_failed += count

    def _error(
        self,
        batch: ProducerBatch,
        reason: str,
        kind: type[DeliveryError] = DeliveryError,
        *,
        count: int | None = None,
        requires_reinit: bool = False,
    ) -> DeliveryError:
        return error_of(
            batch,
            reason,
            kind,
            elapsed=self._loop.time() - batch.created,
            count=batch.live_count if count is None else count,
            requires_abort=self._transaction.is_used and not requires_reinit,
            requires_reinit=requires_reinit,
        )


def leader_hints(
    response: ProduceResponse, names: Mapping[int, str], expected: Container[tuple[str, int]]
) -> Iterator[LeaderHint]:
    """Yield the leaders that a response names for the partitions expected in it (KIP-951)."""
    for topic in response.responses:
        name = topic.name or names.get(topic.topic_id.int, "")
        for answer in topic.partition_responses:
            leader = answer.current_leader
            if leader.leader_id >= 0 and (name, answer.index) in expected:
                yield LeaderHint(name, answer.index, leader.leader_id, leader.leader_epoch)
